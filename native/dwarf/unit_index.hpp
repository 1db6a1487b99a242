#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dwarf/sections.hpp"
#include "dwarf/unit.hpp"

namespace hangtrace::dwarf {

/// Which unit holds what: by address of code, and by offset in .debug_info.
class UnitIndex {
 public:
  explicit UnitIndex(Sections& sections) : sections_(sections) {}

  /// Offsets of the units with the code at these addresses (sorted) -> their addresses. From .debug_aranges,
  /// and for what is not listed there from the first entries of all units, until the deadline.
  std::map<std::uint64_t, std::vector<Address>> units_of(std::span<const Address> addresses,
                                                         std::chrono::steady_clock::time_point deadline);
  /// The unit which begins at, or holds, this offset; nullptr if it cannot be read. Kept.
  std::shared_ptr<const Unit> unit_at(std::uint64_t offset);
  /// Whether a unit's entries lie in another (.dwo) file.
  bool found_split() const { return found_split_; }

 private:
  void load_headers();
  void load_address_ranges();
  struct Listed {
    Range range;
    std::uint64_t unit;
  };
  Sections& sections_;
  bool headers_loaded_ = false;
  std::vector<UnitHeader> headers_;
  bool ranges_loaded_ = false;
  std::vector<Listed> listed_;  // sorted by begin
  std::map<std::uint64_t, std::shared_ptr<const Unit>> units_;
  std::uint64_t bytes_loaded_ = 0;
  bool found_split_ = false;
};

}  // namespace hangtrace::dwarf
