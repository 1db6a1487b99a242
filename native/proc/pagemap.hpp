#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory/reader.hpp"

// /proc/PID/pagemap: which physical pages a process has mapped. Of all files that walk page tables it is the
// one that keeps the mmap lock for the shortest time: the kernel lets go of it every 2 MiB.
namespace hangtrace::proc {

using memory::Address;

/// Sums over pages of the machine's size.
struct PageCounts {
  std::uint64_t present = 0;
  std::uint64_t swapped = 0;
  std::uint64_t file = 0;       // of a file, or shared and anonymous
  std::uint64_t exclusive = 0;  // mapped once, by this process (Linux 4.2)
  std::uint64_t numbered = 0;   // whose frame is shown: all that are present, or none without CAP_SYS_ADMIN
  friend bool operator==(const PageCounts&, const PageCounts&) = default;
};

/// Physical pages by number.
class FrameSet {
 public:
  /// Whether it was not there yet.
  bool insert(std::uint64_t frame);
  bool contains(std::uint64_t frame) const;
  std::uint64_t size() const { return size_; }
  std::size_t bytes() const { return blocks_.size() * sizeof(Block); }

  /// How many frames are in this one and not in the other.
  std::uint64_t count_without(const FrameSet& other) const;

 private:
  friend class FrameGroup;
  static constexpr std::size_t words = 512;  // 128 MiB of memory a block
  static constexpr unsigned block_bits = 15;
  using Block = std::array<std::uint64_t, words>;

  Block& block(std::uint64_t number);

  std::unordered_map<std::uint64_t, std::unique_ptr<Block>> blocks_;
  std::uint64_t last_number_ = ~std::uint64_t{0};
  Block* last_ = nullptr;
  std::uint64_t size_ = 0;
};

/// The pages of several processes: each counted once, however many map it. From several threads.
class FrameGroup {
 public:
  /// Adds all pages of one member. Members added twice count as two.
  void add(int member, std::shared_ptr<const FrameSet> frames);

  std::uint64_t size() const;
  /// Pages that one member alone has.
  std::uint64_t unique() const;
  /// Of those the ones that this member has; nullopt if it was not added, or if that is no longer known: what
  /// is kept for it is bounded.
  std::optional<std::uint64_t> unique_of(int member) const;

 private:
  static constexpr std::size_t most_kept = std::size_t{192} << 20;

  mutable std::mutex mutex_;
  FrameSet all_;
  FrameSet several_;
  std::vector<std::pair<int, std::shared_ptr<const FrameSet>>> members_;
  std::size_t kept_ = 0;
  bool forgotten_ = false;
};

/// The pages that stand for memory nobody has written to: mapped without end, and counted nowhere.
struct ZeroPages {
  std::uint64_t small = 0;       // 0: not known
  std::uint64_t huge_start = 0;  // of 512 pages
  std::uint64_t huge_end = 0;

  bool holds(std::uint64_t frame) const {
    return frame == small || (frame >= huge_start && frame < huge_end);
  }
  /// Those of this machine, learned from a page of our own that we only read.
  static ZeroPages find();
};

/// What a piece of a pagemap says.
void count_pages(std::span<const std::uint64_t> entries, const ZeroPages& zero, PageCounts& counts,
                 FrameSet& frames);

struct PageRange {
  Address start = 0;
  Address end = 0;
  bool sparse =
      false;  // hardly anything is there: what is, is searched for first, where the kernel can (6.7)
};

enum class WalkEnd { done, out_of_time, failed };

struct Walk {
  WalkEnd end = WalkEnd::done;
  int error = 0;  // errno, if failed
  PageCounts counts;
  std::shared_ptr<FrameSet> frames = std::make_shared<FrameSet>();
};

/// Reads what is mapped in these ranges, in order, until the deadline.
Walk walk_pages(const std::string& proc_root, int pid, std::span<const PageRange> ranges,
                const ZeroPages& zero, std::chrono::steady_clock::time_point deadline);

}  // namespace hangtrace::proc
