#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "elf/module.hpp"

namespace hangtrace::dwarf {

/// How a structure lies in memory, in bytes.
struct Structure {
  std::uint64_t size = 0;
  /// By name, without what is inherited and without the members of anonymous ones. Of a bit-field, the byte
  /// that it begins in, and only where it fills whole bytes.
  std::map<std::string, std::uint64_t, std::less<>> members;

  std::optional<std::uint64_t> offset(std::string_view member) const;
};

struct Structures {
  std::map<std::string, Structure, std::less<>> found;  // by name
  std::string problem;                                  // why some may be missing
};

/// The global structures and classes of these names, where their own debug information (DWARF 2 to 5) defines
/// them; a name may end with '*' for any ending. Searches unit after unit until all are found, `most_units`
/// after the first one was, or the deadline.
Structures find_structures(const elf::Module& module, std::span<const std::string_view> names,
                           std::size_t most_units, std::chrono::steady_clock::time_point deadline);

}  // namespace hangtrace::dwarf
