#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "elf/module.hpp"
#include "unwind/cfi.hpp"

namespace hangtrace::unwind {

struct FunctionRange {  // va
  Address begin;
  Address end;
};

/// The unwind tables of one module: .eh_frame through .eh_frame_hdr, or by one pass over it where the header
/// is missing or of an unusual form, then .debug_frame. Loaded at the first question.
class FrameTable {
 public:
  explicit FrameTable(const elf::Module& module) : module_(module) {}

  struct Answer {
    std::shared_ptr<const Row> row;
    bool broken = false;  // there is an entry, but it cannot be used
  };
  Answer row(Address va);
  /// The range of the entry which covers `va` (a function, or a part of one).
  std::optional<FunctionRange> function(Address va);

 private:
  struct IndexEntry {
    Address begin;
    Address end;
    Address fde;  // position of its length field
  };
  struct Found {
    Entry entry;
    FdeRange range;
    const Cie* cie;
  };

  void load();
  bool load_header();
  void load_debug_frame();
  void index_entries(Flavour flavour, Address position, Address end, std::vector<IndexEntry>& index);
  std::optional<Entry> read_entry(Flavour flavour, Address position, Address* next = nullptr) const;
  bool read(Flavour flavour, Address position, std::span<std::byte> into) const;
  const Cie* cie(Flavour flavour, Address position);
  std::optional<Found> open(Flavour flavour, Address position);
  std::optional<Found> find(Address va, bool& broken);
  std::optional<Address> position_in_header(Address va) const;

  const elf::Module& module_;
  bool loaded_ = false;
  bool debug_frame_loaded_ = false;
  Address header_ = 0;              // va of .eh_frame_hdr
  Address sorted_ = 0;              // va of its table of pairs (function, FDE) of 32-bit offsets from header_
  std::uint64_t sorted_count_ = 0;  // 0: not usable
  Address eh_frame_ = 0;            // va it points to, 0 unknown
  std::vector<IndexEntry> linear_;
  std::vector<std::byte> debug_frame_;
  std::vector<IndexEntry> debug_index_;
  std::unordered_map<Address, std::optional<Cie>> cies_[2];
  std::unordered_map<Address, Answer> rows_;
};

class TableCache {
 public:
  FrameTable& of(const elf::Module& module);

 private:
  std::unordered_map<const elf::Module*, std::unique_ptr<FrameTable>> tables_;
};

}  // namespace hangtrace::unwind
