#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dwarf/sections.hpp"
#include "dwarf/unit.hpp"

namespace hangtrace::dwarf {

struct Position {
  std::uint64_t file = 0;  // index for LineTable::file
  std::uint64_t line = 0;  // 0: code of no line
};

/// The line program of a unit (versions 2 to 5).
class LineTable {
 public:
  /// Runs it once for all addresses (sorted). nullopt if there is no program of a known version, or its
  /// header is broken; one that breaks later gives what came before.
  static std::optional<LineTable> run(Sections& sections, const Unit& unit,
                                      std::span<const Address> addresses);

  std::optional<Position> position(Address address) const;
  /// Path of a file, made absolute with the directories recorded; empty: no such file.
  std::string file(std::uint64_t index) const;

 private:
  struct File {
    std::string name;
    std::uint64_t directory;
  };
  struct Program;
  LineTable() = default;
  void read_tables_5(Sections& sections, const Unit& unit, elf::Cursor& cursor, bool wide);
  void read_tables(elf::Cursor& cursor);
  void execute(elf::Cursor& cursor, const Program& program, std::span<const Address> addresses);

  std::string compilation_directory_;
  bool from_one_ = true;  // files are counted from 1, and directory 0 is where the compiler ran
  std::vector<std::string> directories_;
  std::vector<File> files_;
  std::map<Address, Position> positions_;
};

}  // namespace hangtrace::dwarf
