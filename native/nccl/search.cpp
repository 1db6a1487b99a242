#include "nccl/search.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "nccl/magic.hpp"

namespace hangtrace::nccl {

namespace {

constexpr Address page = 4096;
constexpr std::size_t window = 1 << 20;  // read at once
constexpr std::size_t max_found = 1024;
// Behind a hash there are seven int and one 64-bit number.
constexpr std::size_t fingerprint_bytes = 48;

bool is_searched(const proc::Mapping& mapping) {
  if (!mapping.readable || !mapping.writable || mapping.shared) return false;
  return mapping.path.empty() || mapping.path == "[heap]" || mapping.path.starts_with("[anon");
}

std::int32_t int_at(const std::byte* at) {
  std::int32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::uint64_t word_at(const std::byte* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Compute capabilities lie between 3.5 and 19.9: the device's own between the least and the most of the
// ranks'.
bool are_capabilities(int own, int least, int most) {
  return own >= 35 && own < 200 && least >= 35 && least <= own && most >= own && most < 200;
}

// The run {hash, rank, ranks, device, [nvml device,] capability, least, most, …, bus id} of 2.18 to 2.32.
bool is_fingerprint(const std::byte* at, bool nvml) {
  // A hash has bits everywhere; small numbers do not.
  if (word_at(at) >> 40 == 0) return false;
  const int rank = int_at(at + 8);
  const int n_ranks = int_at(at + 12);
  const int device = int_at(at + 16);
  if (rank < 0 || rank >= n_ranks || n_ranks > 65536 || device < 0 || device >= 64) return false;
  const std::byte* next = at + 20;
  if (nvml) {
    if (int_at(next) < 0 || int_at(next) >= 256) return false;
    next += 4;
  }
  // While the ranks get to know each other, the least and the most are not yet known.
  const bool known = are_capabilities(int_at(next), int_at(next + 4), int_at(next + 8));
  const bool early =
      int_at(next) >= 35 && int_at(next) < 200 && int_at(next + 4) == 0 && int_at(next + 8) == 0;
  if (!known && !early) return false;
  const std::uint64_t bus = word_at(at + (nvml ? 40 : 32));
  return bus != 0 && bus < (std::uint64_t{1} << 36) && (bus & 7) == 0;
}

class Searcher {
 public:
  Searcher(const memory::Reader& memory, const PresentPages& pages, const Layout& layout, Deadline deadline)
      : memory_(memory),
        pages_(pages),
        layout_(layout),
        deadline_(deadline),
        by_magic_(layout.offset(Field::start_magic) == 0u),
        buffer_(window + fingerprint_bytes) {}

  SearchResult run(const std::vector<proc::Mapping>& mappings) {
    std::vector<const proc::Mapping*> order;
    for (const proc::Mapping& mapping : mappings) {
      if (is_searched(mapping)) order.push_back(&mapping);
    }
    // Small ones first, the heap before all: a communicator is an object of a megabyte at most.
    std::ranges::stable_sort(order, {}, [](const proc::Mapping* mapping) {
      return mapping->path == "[heap]" ? 0 : mapping->end - mapping->start;
    });
    for (const proc::Mapping* mapping : order) {
      for (Address from = mapping->start; from < mapping->end;
           from += std::min(most_asked, mapping->end - from)) {
        for (const auto& [begin, end] : pages_.within(from, std::min(from + most_asked, mapping->end))) {
          if (!search_range(begin, end)) {
            result_.complete = false;
            return std::move(result_);
          }
        }
      }
    }
    return std::move(result_);
  }

 private:
  static constexpr Address most_asked = Address{1} << 30;

  bool search_range(Address begin, Address end) {
    for (Address from = begin; from < end; from += window) {
      if (std::chrono::steady_clock::now() >= deadline_) return false;
      // A fingerprint may lie across the border.
      const std::size_t size = std::min<Address>(end - from, buffer_.size());
      if (!memory_.read(from, std::span(buffer_).first(size))) continue;
      if (!search_bytes(from, size) || result_.found.size() >= max_found) return false;
    }
    return true;
  }

  bool search_bytes(Address from, std::size_t size) {
    if (by_magic_) {
      for (std::size_t i = 0; i + 8 <= std::min(size, window); i += 8) {
        if (word_at(&buffer_[i]) == magic && !take(from + i, FoundBy::magic)) return false;
      }
      return true;
    }
    const bool nvml = layout_.has(Field::nvml_device) || !layout_.has(Field::bus_id);
    const Address before = layout_.offset(Field::comm_hash).value_or(0);
    for (std::size_t i = 0; i + fingerprint_bytes <= size && i < window; i += 8) {
      if (is_fingerprint(&buffer_[i], nvml) && from + i >= before &&
          !take(from + i - before, FoundBy::fingerprint)) {
        return false;
      }
    }
    return true;
  }

  // False when the time is over: memory may be full of what looks like a communicator, each with long lists.
  bool take(Address address, FoundBy found_by) {
    if (std::chrono::steady_clock::now() >= deadline_) return false;
    if (auto found = decode(memory_, layout_, address, found_by)) result_.found.push_back(std::move(*found));
    return true;
  }

  const memory::Reader& memory_;
  const PresentPages& pages_;
  const Layout& layout_;
  Deadline deadline_;
  bool by_magic_;
  std::vector<std::byte> buffer_;
  SearchResult result_;
};

}  // namespace

PageMap::PageMap(const std::string& proc_root, int pid)
    : descriptor_(::open(proc::process_path(proc_root, pid, "pagemap").c_str(), O_RDONLY | O_CLOEXEC)) {}

std::vector<std::pair<Address, Address>> PageMap::within(Address from, Address to) const {
  constexpr std::uint64_t present = std::uint64_t{1} << 63;
  std::vector<std::pair<Address, Address>> ranges;
  if (!descriptor_) {
    ranges.emplace_back(from, to);
    return ranges;
  }
  std::vector<std::uint64_t> entries(16384);
  for (Address at = from; at < to;) {
    const std::size_t wanted = std::min<Address>(entries.size(), (to - at + page - 1) / page);
    const ssize_t got = ::pread(descriptor_.get(), entries.data(), wanted * sizeof entries[0],
                                static_cast<off_t>(at / page * 8));
    if (got < static_cast<ssize_t>(sizeof entries[0])) break;
    for (std::size_t i = 0; i < static_cast<std::size_t>(got) / sizeof entries[0]; ++i, at += page) {
      if ((entries[i] & present) == 0) continue;
      if (!ranges.empty() && ranges.back().second == at) {
        ranges.back().second = at + page;
      } else {
        ranges.emplace_back(at, at + page);
      }
    }
  }
  return ranges;
}

SearchResult search(const memory::Reader& memory, const std::vector<proc::Mapping>& mappings,
                    const PresentPages& pages, const Layout& layout, Deadline deadline) {
  return Searcher(memory, pages, layout, deadline).run(mappings);
}

}  // namespace hangtrace::nccl
