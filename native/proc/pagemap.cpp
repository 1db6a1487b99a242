#include "proc/pagemap.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "proc/files.hpp"

namespace hangtrace::proc {

namespace {

using Clock = std::chrono::steady_clock;

// Documentation/admin-guide/mm/pagemap.rst
constexpr std::uint64_t present_bit = std::uint64_t{1} << 63;
constexpr std::uint64_t swapped_bit = std::uint64_t{1} << 62;
constexpr std::uint64_t file_bit = std::uint64_t{1} << 61;
constexpr std::uint64_t exclusive_bit = std::uint64_t{1} << 56;
constexpr std::uint64_t frame_mask = (std::uint64_t{1} << 55) - 1;

constexpr std::size_t entries_at_once = 32768;
constexpr std::size_t pages_of_huge = 512;

// include/uapi/linux/fs.h, Linux 6.7
struct ScanRegion {
  std::uint64_t start, end, categories;
};
struct ScanArgument {
  std::uint64_t size = sizeof(ScanArgument);
  std::uint64_t flags = 0;
  std::uint64_t start = 0, end = 0, walk_end = 0;
  std::uint64_t vec = 0, vec_len = 0;
  std::uint64_t max_pages = 0;
  std::uint64_t category_inverted = 0, category_mask = 0, category_anyof_mask = 0, return_mask = 0;
};
constexpr std::uint64_t page_is_present = 1 << 3;
constexpr std::uint64_t page_is_swapped = 1 << 4;
constexpr unsigned long pagemap_scan = _IOWR('f', 16, ScanArgument);
constexpr std::size_t regions_at_once = 512;
// The mmap lock is kept for the whole of a call: so far at a time, in which there is hardly anything.
constexpr std::uint64_t scan_step = std::uint64_t{4} << 30;

std::uint64_t page_size() {
  static const auto size = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

struct Reading {
  int file;
  const ZeroPages& zero;
  Clock::time_point deadline;
  Walk& walk;
  std::vector<std::uint64_t> buffer = std::vector<std::uint64_t>(entries_at_once);

  // False if it is over.
  bool range(Address start, Address end) {
    const std::uint64_t size = page_size();
    for (Address at = start; at < end;) {
      if (Clock::now() >= deadline) {
        walk.end = WalkEnd::out_of_time;
        return false;
      }
      const std::size_t wanted = std::min<std::uint64_t>(entries_at_once, (end - at + size - 1) / size);
      const ssize_t got = pread(file, buffer.data(), wanted * sizeof buffer[0],
                                static_cast<off_t>(at / size * sizeof buffer[0]));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got < 0) {
        walk.end = WalkEnd::failed;
        walk.error = errno;
        return false;
      }
      const std::size_t entries = static_cast<std::size_t>(got) / sizeof buffer[0];
      if (entries == 0) {
        return true;  // it has ended, or this is behind the last page there can be
      }
      count_pages(std::span(buffer).first(entries), zero, walk.counts, *walk.frames);
      at += entries * size;
    }
    return true;
  }

  // nullopt if the kernel cannot search.
  std::optional<bool> search(Address start, Address end) {
    std::array<ScanRegion, regions_at_once> regions;
    for (Address at = start; at < end;) {
      if (Clock::now() >= deadline) {
        walk.end = WalkEnd::out_of_time;
        return false;
      }
      ScanArgument argument;
      argument.start = at;
      argument.end = end - at > scan_step ? at + scan_step : end;
      argument.vec = reinterpret_cast<std::uintptr_t>(regions.data());
      argument.vec_len = regions.size();
      argument.category_anyof_mask = page_is_present | page_is_swapped;
      argument.return_mask = page_is_present;
      const int found = ioctl(file, pagemap_scan, &argument);
      if (found < 0) {
        if (at == start) {
          return std::nullopt;
        }
        return range(at, end);
      }
      for (int i = 0; i < found; ++i) {
        const ScanRegion& region = regions[static_cast<std::size_t>(i)];
        if (region.end > region.start && !range(region.start, region.end)) {
          return false;
        }
      }
      if (argument.walk_end <= at) {
        return range(at, end);
      }
      at = argument.walk_end;
    }
    return true;
  }
};

}  // namespace

FrameSet::Block& FrameSet::block(std::uint64_t number) {
  if (number != last_number_) {
    std::unique_ptr<Block>& place = blocks_[number];
    if (!place) {
      place = std::make_unique<Block>();
    }
    last_number_ = number;
    last_ = place.get();
  }
  return *last_;
}

bool FrameSet::insert(std::uint64_t frame) {
  std::uint64_t& word = block(frame >> block_bits)[frame >> 6 & (words - 1)];
  const std::uint64_t bit = std::uint64_t{1} << (frame & 63);
  if ((word & bit) != 0) {
    return false;
  }
  word |= bit;
  ++size_;
  return true;
}

bool FrameSet::contains(std::uint64_t frame) const {
  const auto found = blocks_.find(frame >> block_bits);
  return found != blocks_.end() && ((*found->second)[frame >> 6 & (words - 1)] >> (frame & 63) & 1) != 0;
}

std::uint64_t FrameSet::count_without(const FrameSet& other) const {
  std::uint64_t count = 0;
  for (const auto& [number, block] : blocks_) {
    const auto found = other.blocks_.find(number);
    for (std::size_t i = 0; i < words; ++i) {
      const std::uint64_t out = found != other.blocks_.end() ? (*found->second)[i] : 0;
      count += static_cast<std::uint64_t>(std::popcount((*block)[i] & ~out));
    }
  }
  return count;
}

void FrameGroup::add(int member, std::shared_ptr<const FrameSet> frames) {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, block] : frames->blocks_) {
    FrameSet::Block& all = all_.block(number);
    FrameSet::Block* several = nullptr;
    for (std::size_t i = 0; i < FrameSet::words; ++i) {
      const std::uint64_t mine = (*block)[i];
      const std::uint64_t both = mine & all[i];
      all_.size_ += static_cast<std::uint64_t>(std::popcount(mine & ~all[i]));
      all[i] |= mine;
      if (both != 0) {
        if (several == nullptr) {
          several = &several_.block(number);
        }
        several_.size_ += static_cast<std::uint64_t>(std::popcount(both & ~(*several)[i]));
        (*several)[i] |= both;
      }
    }
  }
  kept_ += frames->bytes();
  forgotten_ = forgotten_ || kept_ > most_kept;
  members_.emplace_back(member, std::move(frames));
  if (forgotten_) {
    members_.clear();
  }
}

std::uint64_t FrameGroup::size() const {
  const std::lock_guard lock(mutex_);
  return all_.size();
}

std::uint64_t FrameGroup::unique() const {
  const std::lock_guard lock(mutex_);
  return all_.size() - several_.size();
}

std::optional<std::uint64_t> FrameGroup::unique_of(int member) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(members_, member, [](const auto& entry) { return entry.first; });
  if (found == members_.end()) {
    return std::nullopt;
  }
  return found->second->count_without(several_);
}

void count_pages(std::span<const std::uint64_t> entries, const ZeroPages& zero, PageCounts& counts,
                 FrameSet& frames) {
  for (const std::uint64_t entry : entries) {
    if ((entry & present_bit) == 0) {
      counts.swapped += (entry & swapped_bit) != 0 ? 1 : 0;
      continue;
    }
    const std::uint64_t frame = entry & frame_mask;
    if (frame != 0 && zero.holds(frame)) {
      continue;
    }
    ++counts.present;
    counts.file += (entry & file_bit) != 0 ? 1 : 0;
    counts.exclusive += (entry & exclusive_bit) != 0 ? 1 : 0;
    if (frame != 0) {
      ++counts.numbered;
      frames.insert(frame);
    }
  }
}

ZeroPages ZeroPages::find() {
  ZeroPages zero;
  constexpr std::size_t huge = std::size_t{2} << 20;
  const Descriptor file(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  void* const memory = mmap(nullptr, 2 * huge, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return zero;
  }
  const auto first_frame = [&](std::uintptr_t address, std::span<std::uint64_t> entries) {
    static_cast<void>(*reinterpret_cast<volatile const char*>(address));
    const auto wanted = static_cast<ssize_t>(entries.size_bytes());
    const auto at = static_cast<off_t>(address / page_size() * sizeof entries[0]);
    return file && pread(file.get(), entries.data(), entries.size_bytes(), at) == wanted &&
                   (entries[0] & present_bit) != 0
               ? entries[0] & frame_mask
               : 0;
  };
  const auto start = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t aligned = (start + huge - 1) / huge * huge;
  std::array<std::uint64_t, pages_of_huge> entries{};
  madvise(memory, 2 * huge, MADV_NOHUGEPAGE);
  zero.small = first_frame(start, std::span(entries).first(1));
  madvise(memory, 2 * huge, MADV_DONTNEED);
  if (huge == pages_of_huge * page_size() && madvise(memory, 2 * huge, MADV_HUGEPAGE) == 0) {
    const std::uint64_t frame = first_frame(aligned, entries);
    // One read that brought all of them is a huge page.
    if (frame != 0 && (entries[pages_of_huge - 1] & frame_mask) == frame + pages_of_huge - 1) {
      zero.huge_start = frame;
      zero.huge_end = frame + pages_of_huge;
    }
  }
  munmap(memory, 2 * huge);
  return zero;
}

Walk walk_pages(const std::string& proc_root, int pid, std::span<const PageRange> ranges,
                const ZeroPages& zero, Clock::time_point deadline) {
  Walk walk;
  const Descriptor file(open(process_path(proc_root, pid, "pagemap").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    walk.end = WalkEnd::failed;
    walk.error = errno;
    return walk;
  }
  Reading reading{file.get(), zero, deadline, walk};
  bool can_search = true;
  for (const PageRange& range : ranges) {
    if (range.sparse && can_search) {
      const std::optional<bool> searched = reading.search(range.start, range.end);
      if (searched == false) {
        break;
      }
      if (searched) {
        continue;
      }
      can_search = false;
    }
    if (!reading.range(range.start, range.end)) {
      break;
    }
  }
  return walk;
}

}  // namespace hangtrace::proc
