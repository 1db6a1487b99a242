#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "elf/imports.hpp"
#include "elf/process_modules.hpp"
#include "memory/buffer_reader.hpp"
#include "memory/file_reader.hpp"
#include "nccl/heaps.hpp"
#include "proc/maps.hpp"

namespace {

using namespace hangtrace;
using memory::Address;

constexpr Address mib = 1 << 20;
constexpr Address first = Address{64} * mib * 3;

class Pages : public nccl::PresentPages {
 public:
  std::vector<std::pair<Address, Address>> within(Address from, Address to) const override {
    if (from == absent) return {};
    return {{from, to}};
  }
  Address absent = 0;
};

proc::Mapping mapping(Address start, Address size, const char* path = "") {
  proc::Mapping result;
  result.start = start;
  result.end = start + size;
  result.readable = result.writable = true;
  result.path = path;
  return result;
}

// As glibc has it: the arena, the heap before, and how much of this one is in use and accessible.
using HeapInfo = std::array<Address, 4>;

struct Own {
  elf::ModuleCache cache;
  std::vector<proc::Mapping> mappings = *proc::read_maps("/proc", getpid());
  memory::FileReader reader{"/proc", getpid()};
  elf::ProcessModules modules{cache, "/proc", getpid(), mappings, reader};
  nccl::PageMap pages{"/proc", getpid()};

  elf::Location at(Address address) { return *modules.locate(address); }
  // Of what `function` belongs to.
  std::optional<std::vector<proc::Mapping>> heaps(const void* function, std::uint64_t size) {
    return nccl::malloc_heaps(modules, at(reinterpret_cast<Address>(function)), pages, "/proc", getpid(),
                              size);
  }
};

bool is_within(const std::vector<proc::Mapping>& heaps, const void* object) {
  const auto address = reinterpret_cast<Address>(object);
  return std::ranges::any_of(
      heaps, [address](const proc::Mapping& heap) { return heap.start <= address && address < heap.end; });
}

}  // namespace

TEST_CASE("heaps are the main one and those of threads") {
  memory::BufferReader memory;
  memory.add_value<HeapInfo>(first, {first + 0x30, 0, 2 * mib, 3 * mib});
  // Further on in the same mapping: a second heap of that arena, and memory that only lies as one would.
  memory.add_value<HeapInfo>(first + 64 * mib, {first + 0x30, first, mib, mib});
  memory.add_value<HeapInfo>(first + 128 * mib, {first + 192 * mib + 0x30, 0, mib, mib});
  const std::vector<proc::Mapping> mappings = {
      mapping(10 * mib, mib, "[heap]"), mapping(first - mib, 200 * mib), mapping(first + 500 * mib, mib)};
  Pages pages;
  const auto heaps = nccl::heap_mappings(memory, mappings, pages);
  REQUIRE(heaps);
  REQUIRE(heaps->size() == 3);
  CHECK((*heaps)[0].path == "[heap]");
  CHECK((*heaps)[1].start == first);
  CHECK((*heaps)[1].end == first + 3 * mib);
  CHECK((*heaps)[2].start == first + 64 * mib);

  pages.absent = first;  // a page that was never touched is no head of a heap, and is not read
  CHECK(nccl::heap_mappings(memory, mappings, pages)->size() == 2);
}

TEST_CASE("a main heap that could not grow is not all of it") {
  const memory::BufferReader memory;
  const Pages pages;
  CHECK_FALSE(nccl::heap_mappings(memory, {mapping(10 * mib, mib, "[heap]"), mapping(12 * mib, mib)}, pages));
  CHECK_FALSE(nccl::heap_mappings(memory, {mapping(first, mib)}, pages));
}

TEST_CASE("what a live module gets from malloc is in the heaps") {
  const auto function = reinterpret_cast<const void*>(&is_within);
  constexpr std::size_t size = 16288;
  void* const here = std::calloc(1, size);
  void* there = nullptr;
  std::thread([&there] { there = std::calloc(1, size); }).join();
  {
    Own own;
    const auto heaps = own.heaps(function, size);
    REQUIRE(heaps);
    CHECK(is_within(*heaps, here));
    CHECK(is_within(*heaps, there));
    CHECK_FALSE(is_within(*heaps, &own));
    CHECK_FALSE(own.heaps(function, 128 << 10));  // may have pages of its own
    CHECK_FALSE(own.heaps(function, 0));
  }
  std::free(here);
  std::free(there);
}

TEST_CASE("the word through which a function of another module is called") {
  Own own;
  const elf::Location self = own.at(reinterpret_cast<Address>(&is_within));
  constexpr std::array<std::string_view, 1> names = {"calloc"};
  const auto slots = elf::import_slots(*self.module, names);
  REQUIRE_FALSE(slots.empty());
  void* const kept = std::calloc(1, 8);  // so that it is bound
  const auto bound = own.reader.read_value<Address>(self.bias + slots.front());
  CHECK(bound == reinterpret_cast<Address>(dlsym(RTLD_DEFAULT, "calloc")));
  std::free(kept);
  constexpr std::array<std::string_view, 1> others = {"no_such_function"};
  CHECK(elf::import_slots(*self.module, others).empty());
}
