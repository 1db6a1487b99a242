#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "elf/module.hpp"
#include "elf/process_modules.hpp"
#include "unwind/cfi.hpp"

namespace hangtrace::unwind {

struct FunctionRange {  // va
  Address begin;
  Address end;
};

/// The unwind tables of one module: .eh_frame through the search table of .eh_frame_hdr, or by one pass over
/// it where that is missing or not sorted, then .debug_frame. Loaded at the first question. From several
/// threads.
class FrameTable {
 public:
  explicit FrameTable(const elf::Module& module) : module_(module) {}

  struct Answer {
    std::shared_ptr<const Row> row;
    bool broken = false;     // there is an entry, but it cannot be used
    bool ends_call = false;  // by the file, a call instruction ends with the byte that was asked for
    int cost = 0;            // of this question beyond that of a small table, in frames
  };
  Answer row(Address va);
  /// The range of the entry which covers `va` (a function, or a part of one).
  std::optional<FunctionRange> function(Address va);
  /// All functions with an entry that can be used, by begin. Passes over all tables.
  std::vector<FunctionRange> functions();

 private:
  struct IndexEntry {
    Address begin;
    Address end;
    Address fde;  // position of its length field
  };
  struct Found {
    Entry entry;
    FdeRange range;
    std::shared_ptr<const Cie> cie;
  };
  struct Search {  // the table of .eh_frame_hdr: pairs (function, FDE)
    Address va = 0;
    std::uint64_t count = 0;  // 0: none
    std::uint8_t encoding = 0;
    std::uint64_t pointer_size = 0;
    bool checked = false;  // that it is sorted
  };
  struct SearchPair {
    Address begin;
    Address fde;
  };

  void load();
  bool load_header();
  void load_eh_frame();
  void scan_for_eh_frame();
  void load_debug_frame();
  Address index_entries(Flavour flavour, Address position, Address end, bool skip_zeros,
                        std::vector<IndexEntry>& index);
  std::optional<Entry> read_entry(Flavour flavour, Address position, Address* next = nullptr) const;
  bool read(Flavour flavour, Address position, std::span<std::byte> into) const;
  std::shared_ptr<const Cie> cie(Flavour flavour, Address position);
  std::optional<Found> open(Flavour flavour, Address position);
  std::optional<Found> find(Address va, bool& broken);
  std::optional<Found> find_in_header(Address va, bool& broken);
  std::optional<Found> find_in(Flavour flavour, const std::vector<IndexEntry>& index, Address va);
  std::optional<SearchPair> pair(std::uint64_t number) const;
  bool search_is_sorted() const;

  const elf::Module& module_;
  std::mutex mutex_;  // of all that follows
  bool loaded_ = false;
  bool debug_frame_loaded_ = false;
  Address header_ = 0;  // va of .eh_frame_hdr
  Search search_;
  Address eh_frame_ = 0;  // va it points to, 0 unknown
  std::vector<IndexEntry> linear_;
  std::vector<std::byte> debug_frame_;
  std::vector<IndexEntry> debug_index_;
  std::unordered_map<Address, std::shared_ptr<const Cie>> cies_[2];  // null: broken
  std::uint64_t cie_bytes_ = 0;                                      // read, ever
  std::uint64_t indexed_bytes_ = 0;
  std::unordered_map<Address, Answer> rows_;
  std::size_t row_bytes_ = 0;
};

/// The tables of all modules, from several threads.
class TableCache {
 public:
  FrameTable& of(const elf::Module& module);

 private:
  std::mutex mutex_;
  std::unordered_map<const elf::Module*, std::unique_ptr<FrameTable>> tables_;
};

/// Rows that one process's stacks asked for, beside the tables: asked again they need no lock and touch no
/// counter that other threads write to. One thread at a time.
class NearRows {
 public:
  explicit NearRows(TableCache& tables) : tables_(tables) {}
  /// `location.module` is not null. The row is valid as long as this object and the answer.
  FrameTable::Answer row(const elf::Location& location);

 private:
  TableCache& tables_;
  std::unordered_map<Address, FrameTable::Answer> rows_;  // by address in the process
};

}  // namespace hangtrace::unwind
