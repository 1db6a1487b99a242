#include "python/gc_objects.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <unordered_map>

namespace hangtrace::python {
namespace {

constexpr std::size_t kMaxObjects = 1'000'000;
constexpr std::size_t kMaxFound = 2000;
constexpr std::size_t kClockEvery = 1024;  // objects
constexpr std::size_t kGenerations = 3;
constexpr Address kGenerationSize = 24;  // struct gc_generation {PyGC_Head head; int threshold; int count}
constexpr Address kHeadSize = 16;        // PyGC_Head {_gc_next, _gc_prev}, right before the object
constexpr Address kFlags = 3;            // low bits of both

// Offset of struct _gc_runtime_state.generations: up to 3.8 in _PyRuntime, then in PyInterpreterState. From
// the debug information of 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1, 3.13.0 and the headers of 3.14.10
// and 3.15.2.
struct Place {
  int minor;
  bool in_runtime;
  Address offset;
};
constexpr std::array<Place, 8> kPlaces = {{
    {8, true, 368},
    {9, false, 640},
    {10, false, 640},
    {11, false, 672},
    {12, false, 136},
    {13, false, 7424},
    {14, false, 7432},
    {15, false, 7408},
}};

// Memory in large pieces, as neighbours in the lists are mostly neighbours in memory too. Few are kept: a
// heap may be larger than we want to be.
class Blocks {
 public:
  explicit Blocks(const memory::Reader& reader) : reader_(reader) {}

  bool read(Address from, std::span<std::byte> into) {
    const Address number = from / kSize;
    const std::size_t offset = from % kSize;
    if (offset + into.size() > kSize) return reader_.read(from, into);
    Block& block = blocks_[number % kKept];
    if (block.number != number || block.bytes.empty()) {
      block.bytes.resize(kSize);
      block.number = number;
      block.whole = reader_.read(number * kSize, block.bytes);
    }
    // At the edge of a mapping a block cannot be read whole.
    if (!block.whole) return reader_.read(from, into);
    std::copy_n(block.bytes.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
    return true;
  }

 private:
  static constexpr std::size_t kSize = 64 << 10;
  static constexpr std::size_t kKept = 128;
  struct Block {
    Address number = 0;
    bool whole = false;
    std::vector<std::byte> bytes;
  };
  const memory::Reader& reader_;
  std::array<Block, kKept> blocks_;
};

// What the calling thread has burned: on a busy machine the wall clock says little of the work done.
std::chrono::nanoseconds used_cpu() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

std::optional<Address> generations(const memory::Reader& reader, const Layout& layout, Address runtime,
                                   const Interpreter& interpreter) {
  if (layout.free_threaded) return std::nullopt;
  for (const Place& place : kPlaces) {
    if (place.minor != layout.minor) continue;
    const Address first = (place.in_runtime ? runtime : interpreter.address) + place.offset;
    // An empty or a circular list: the neighbours of each head point back to it.
    for (std::size_t i = 0; i < kGenerations; ++i) {
      const Address head = first + i * kGenerationSize;
      const auto links = reader.read_value<std::array<Address, 2>>(head);
      if (!links) return std::nullopt;
      const Address next = (*links)[0] & ~kFlags;
      const Address previous = (*links)[1] & ~kFlags;
      if (!plausible(next) || !plausible(previous)) return std::nullopt;
      const auto back = reader.read_value<Address>(next + 8);
      const auto forth = reader.read_value<Address>(previous);
      if (!back || !forth || (*back & ~kFlags) != head || (*forth & ~kFlags) != head) return std::nullopt;
    }
    return first;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Address> gc_list_ends(const memory::Reader& reader, const Layout& layout, Address runtime,
                                  const Interpreter& interpreter) {
  std::vector<Address> ends;
  const auto first = generations(reader, layout, runtime, interpreter);
  for (std::size_t i = 0; first && i < kGenerations; ++i) {
    const auto links = reader.read_value<std::array<Address, 2>>(*first + i * kGenerationSize);
    if (links) ends.insert(ends.end(), links->begin(), links->end());
  }
  return ends;
}

FoundObjects find_gc_objects(const memory::Reader& reader, const Layout& layout, Address runtime,
                             const Interpreter& interpreter, const std::function<bool(Address type)>& wanted,
                             std::chrono::milliseconds limit) {
  FoundObjects found;
  const auto first = generations(reader, layout, runtime, interpreter);
  if (!first) return found;
  found.ends = gc_list_ends(reader, layout, runtime, interpreter);
  const auto began = used_cpu();
  std::unordered_map<Address, bool> types;
  const auto words = static_cast<std::size_t>(2 + layout.object_type / 8 + 1);
  std::vector<Address> head(words);
  std::size_t count = 0;
  Blocks blocks(reader);
  for (std::size_t i = 0; i < kGenerations; ++i) {
    const Address list = *first + i * kGenerationSize;
    Address previous = list;
    Address next = reader.read_value<Address>(list).value_or(0) & ~kFlags;
    while (next != list) {
      if (++count > kMaxObjects) return found;
      if (count % kClockEvery == 0 && used_cpu() - began > limit) return found;
      // A link that does not come back: the list changed, or the collector is at work in it.
      if (!plausible(next) || !blocks.read(next, std::as_writable_bytes(std::span(head))) ||
          (head[1] & ~kFlags) != previous) {
        return found;
      }
      const Address type = head[words - 1];
      auto [known, fresh] = types.try_emplace(type);
      if (fresh) known->second = wanted(type);
      if (known->second && found.objects.size() < kMaxFound) found.objects.push_back(next + kHeadSize);
      previous = next;
      next = head[0] & ~kFlags;
    }
  }
  found.complete = true;
  return found;
}

}  // namespace hangtrace::python
