#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "dwarf/sections.hpp"
#include "elf/cursor.hpp"

namespace hangtrace::dwarf {

/// What begins each unit of .debug_info.
struct UnitHeader {
  std::uint64_t offset = 0;  // in the section, as all offsets here
  std::uint64_t end = 0;     // where the next unit begins
  std::uint64_t first_entry = 0;
  std::uint64_t abbreviations = 0;
  std::uint16_t version = 0;
  std::uint8_t type = 0;
  bool wide = false;  // the 64-bit format: offsets of 8 bytes
  unsigned offset_size() const { return wide ? 8 : 4; }
};

/// nullopt at the end of the section, and for what cannot be a header: nothing after it can be found then.
/// Versions that are not known (not 2 to 5) have no first_entry.
std::optional<UnitHeader> read_unit_header(const Section& info, std::uint64_t offset);

/// The length field that begins units, line programs and lists: 4 bytes, or 12 in the 64-bit format.
struct InitialLength {
  std::uint64_t length = 0;
  bool wide = false;
};
InitialLength read_initial_length(elf::Cursor& cursor);

struct AttributeSpec {
  std::uint64_t name;
  std::uint64_t form;
  std::int64_t implicit;  // value of DW_FORM_implicit_const
};

struct Abbreviation {
  std::uint64_t tag = 0;
  bool has_children = false;
  std::vector<AttributeSpec> attributes;
  std::optional<std::uint32_t> size;  // of all attributes, if it is the same for each entry
};

/// What entries of a unit can look like, by code.
class AbbreviationTable {
 public:
  /// The table at `offset`, for units of this shape; nullopt if it is broken.
  static std::optional<AbbreviationTable> read(const Section& section, std::uint64_t offset,
                                               const UnitHeader& unit);
  const Abbreviation* find(std::uint64_t code) const;

 private:
  std::vector<Abbreviation> dense_;  // codes from 1 on, as compilers number them
  std::unordered_map<std::uint64_t, Abbreviation> others_;
};

/// An attribute's value, as far as it is in the entry itself.
struct Value {
  enum class Kind {
    none,  // absent, or a form that is only skipped
    number,
    address,
    address_index,
    text,          // in place
    string,        // offset into .debug_str
    line_string,   // offset into .debug_line_str
    string_index,  // through .debug_str_offsets
    range_index,   // through the offsets at the unit's range lists base
    reference,     // offset in .debug_info
    elsewhere,     // in a supplementary file (dwz) or type unit, which is not read
  };
  Kind kind = Kind::none;
  std::uint64_t number = 0;
  std::string_view in_place;
};

/// Reads one value, or passes over it; the cursor fails on a form that is not known.
Value read_value(elf::Cursor& cursor, const AttributeSpec& spec, const UnitHeader& unit);

/// Attributes of one entry that are of use here.
struct Entry {
  std::uint64_t tag = 0;  // 0: the end of a list of children
  bool has_children = false;
  Value name, linkage_name, low_pc, high_pc, ranges, abstract_origin, specification, call_file, call_line;
};

struct Range {
  Address begin;
  Address end;
};

/// One unit, whole or only its first entry.
class Unit {
 public:
  enum class Extent { first_entry, whole };
  /// nullptr if it cannot be read.
  static std::shared_ptr<Unit> load(Sections& sections, const UnitHeader& header, Extent extent);

  const UnitHeader& header() const { return header_; }
  elf::Cursor entries() const;  // at the first one; positions are from the unit's begin
  /// Reads the next entry; with `skim` only entries of code are read in full, others give their tag only.
  Entry read_entry(elf::Cursor& cursor, bool skim) const;

  /// What the entry of this code looks like; nullptr: no such.
  const Abbreviation* abbreviation(std::uint64_t code) const { return abbreviations_.find(code); }

  std::string text(const Value& value) const;
  std::optional<Address> address(const Value& value) const;
  /// What code an entry stands for.
  std::vector<Range> ranges(const Entry& entry) const;

  const std::string& directory() const { return directory_; }
  const std::string& name() const { return name_; }
  std::optional<std::uint64_t> line_program() const { return line_program_; }  // offset in .debug_line
  bool is_split() const { return split_; }  // its entries are in a .dwo file
  const Entry& root() const { return root_; }

 private:
  Unit(Sections& sections, const UnitHeader& header) : sections_(sections), header_(header) {}
  bool read_root();
  void range_list(std::uint64_t offset, std::vector<Range>& ranges) const;
  void range_list_5(std::uint64_t offset, std::vector<Range>& ranges) const;
  std::optional<Address> indexed_address(std::uint64_t index) const;

  Sections& sections_;
  UnitHeader header_;
  Bytes bytes_;  // from the unit's begin
  AbbreviationTable abbreviations_;
  Entry root_;
  Address base_ = 0;  // for range lists
  std::uint64_t string_offsets_base_ = 0;
  std::uint64_t address_base_ = 0;
  std::uint64_t range_lists_base_ = 0;
  std::string directory_;
  std::string name_;
  std::optional<std::uint64_t> line_program_;
  bool split_ = false;
};

}  // namespace hangtrace::dwarf
