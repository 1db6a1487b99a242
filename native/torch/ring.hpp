#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "memory/reader.hpp"
#include "torch/layout.hpp"
#include "torch/standard_types.hpp"

namespace hangtrace::torch {

/// What stands before the entries of a recorder, at one moment.
struct Head {
  bool enabled = false;
  bool held = false;  // somebody is writing
  Address begin = 0;
  Address end = 0;
  std::uint64_t most = 0;   // max_entries_
  std::uint64_t next = 0;   // slot that is written next
  std::uint64_t count = 0;  // id_: how many were recorded since the last reset
  std::uint64_t epoch = 0;  // how often it was reset

  bool is_empty() const { return begin == end; }
};

/// nullopt: unreadable, or it cannot be one of this layout.
std::optional<Head> read_head(const memory::Reader& memory, const RecorderLayout& layout, Address recorder);

/// A copy of the slots of a recorder.
class Ring {
 public:
  /// nullopt: unreadable, or the entries are not those of this layout. That they are is told by their ids,
  /// which count down from the last one.
  static std::optional<Ring> read(const memory::Reader& memory, const RecorderLayout& layout,
                                  const Head& head);

  /// Slots of the entries since the last reset, newest first.
  const std::vector<std::size_t>& order() const { return order_; }
  std::size_t slots() const { return bytes_.size() / size(); }
  Copy entry(std::size_t slot) const;
  /// Leaves out what was written, or may have been, until this later moment. False: that may be all.
  bool drop_written(const Head& before, const Head& after);

 private:
  explicit Ring(const EntryLayout& layout) : layout_(&layout) {}
  bool put_in_order(const Head& head);
  std::size_t size() const { return static_cast<std::size_t>(layout_->size); }

  const EntryLayout* layout_;
  Address begin_ = 0;
  std::vector<std::byte> bytes_;
  std::vector<std::size_t> order_;
};

}  // namespace hangtrace::torch
