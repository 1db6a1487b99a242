#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>

#include "memory/buffer_reader.hpp"
#include "memory/file_reader.hpp"
#include "memory/overlay_reader.hpp"
#include "memory/page_reader.hpp"
#include "memory/process_reader.hpp"

using namespace hangtrace::memory;

namespace {

constexpr std::size_t page = 4096;

// One page between two holes. Not merely protected neighbours: /proc/PID/mem reads those.
class GuardedPage {
 public:
  GuardedPage()
      : base_(static_cast<char*>(
            mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(base_ != MAP_FAILED);
    REQUIRE(munmap(base_, page) == 0);
    REQUIRE(munmap(base_ + 2 * page, page) == 0);
  }
  ~GuardedPage() { munmap(base_ + page, page); }
  char* start() const { return base_ + page; }
  Address address() const { return reinterpret_cast<Address>(start()); }

 private:
  char* base_;
};

void check_partial_batch(const Reader& reader, const GuardedPage& memory) {
  for (std::size_t i = 0; i < page; ++i) {
    memory.start()[i] = static_cast<char>(i * 7);
  }
  std::array<std::byte, 64> a, b, c, d;
  for (auto* buffer : {&a, &b, &c, &d}) {
    buffer->fill(std::byte{0xee});
  }
  const std::array<Piece, 4> pieces{{{memory.address(), a},
                                     {memory.address() + page - 32, b},  // runs into the guard
                                     {8, c},                             // never mapped
                                     {memory.address() + page - 64, d}}};
  const std::vector<bool> done = reader.read_batch(pieces);
  CHECK(done == std::vector<bool>{true, false, false, true});
  CHECK(std::memcmp(a.data(), memory.start(), a.size()) == 0);
  CHECK(std::memcmp(d.data(), memory.start() + page - 64, d.size()) == 0);
  for (const auto* buffer : {&b, &c}) {
    for (const std::byte byte : *buffer) {
      CHECK(byte == std::byte{0});
    }
  }
}

}  // namespace

TEST_CASE("process reader: pieces around an unreadable one are read") {
  const GuardedPage memory;
  check_partial_batch(ProcessReader(getpid()), memory);
}

TEST_CASE("file reader gives the same") {
  const GuardedPage memory;
  const FileReader reader("/proc", getpid());
  REQUIRE(reader.is_open());
  check_partial_batch(reader, memory);
}

TEST_CASE("process reader: more pieces than one call takes, failures sprinkled in") {
  std::vector<std::uint32_t> source(3000);
  for (std::size_t i = 0; i < source.size(); ++i) {
    source[i] = static_cast<std::uint32_t>(i) * 2654435761u;
  }
  std::vector<std::uint32_t> copy(source.size());
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool broken = i % 97 == 5;
    pieces.push_back({broken ? 16 : reinterpret_cast<Address>(&source[i]),
                      std::as_writable_bytes(std::span(&copy[i], 1))});
  }
  const std::vector<bool> done = ProcessReader(getpid()).read_batch(pieces);
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool broken = i % 97 == 5;
    REQUIRE(done[i] == !broken);
    REQUIRE(copy[i] == (broken ? 0 : source[i]));
  }
}

TEST_CASE("process reader: a process that does not exist") {
  std::array<std::byte, 8> buffer;
  buffer.fill(std::byte{1});
  CHECK_FALSE(ProcessReader(0x3fffffff).read(4096, buffer));
  CHECK(buffer[7] == std::byte{0});
}

TEST_CASE("strings stop at NUL, at the bound, and at the end of memory") {
  const GuardedPage memory;
  const ProcessReader reader(getpid());
  std::strcpy(memory.start() + page - 6, "hello");
  CHECK(reader.read_cstring(memory.address() + page - 6, 100) == "hello");
  CHECK(reader.read_cstring(memory.address() + page - 6, 3) == std::nullopt);
  std::memset(memory.start(), 'x', page);
  CHECK(reader.read_cstring(memory.address() + page - 6, 100) == std::nullopt);
}

TEST_CASE("buffer reader: regions that touch are one, later bytes win") {
  BufferReader reader;
  reader.add_value<std::uint32_t>(0x1000, 0x11111111);
  reader.add_value<std::uint32_t>(0x1004, 0x22222222);
  CHECK(reader.read_value<std::uint64_t>(0x1000) == 0x2222222211111111u);
  reader.add_value<std::uint16_t>(0x1002, 0x3333);
  CHECK(reader.read_value<std::uint64_t>(0x1000) == 0x2222222233331111u);
  CHECK(reader.read_value<std::uint64_t>(0x1001) == std::nullopt);
  CHECK(reader.read_value<std::uint64_t>(0xfff) == std::nullopt);
  reader.add_value<std::uint32_t>(0xffc, 0x44444444);
  CHECK(reader.read_value<std::uint64_t>(0xffc) == 0x3333111144444444u);
}

namespace {

// Counts what (pieces, batches of them) reaches the reader behind.
class CountingReader final : public Reader {
 public:
  explicit CountingReader(const Reader& behind) : behind_(behind) {}
  std::vector<bool> read_batch(std::span<const Piece> pieces) const override {
    calls += pieces.size();
    ++batches;
    return behind_.read_batch(pieces);
  }
  mutable std::size_t calls = 0;
  mutable std::size_t batches = 0;

 private:
  const Reader& behind_;
};

}  // namespace

TEST_CASE("page reader: the same bytes, one read a page, until it forgets") {
  constexpr std::size_t page = PageReader::page_size;
  std::vector<std::byte> bytes(3 * page);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 31 >> 3);
  }
  BufferReader memory;
  memory.add(0x10000, bytes);
  const CountingReader counting(memory);
  PageReader pages(counting);
  for (const std::size_t offset :
       {std::size_t{0}, std::size_t{1}, page - 4, page, 2 * page - 1, 3 * page - 8}) {
    CAPTURE(offset);
    CHECK(pages.read_value<std::uint64_t>(0x10000 + offset) ==
          memory.read_value<std::uint64_t>(0x10000 + offset));
  }
  CHECK(counting.calls == 3);
  CHECK(pages.read_value<std::uint64_t>(0x10000 + 3 * page - 4) == std::nullopt);
  CHECK(pages.read_value<std::uint64_t>(0x10000 + 3 * page) == std::nullopt);
  CHECK(counting.calls == 4);  // that a page is unreadable is remembered too
  memory.add_value<std::uint64_t>(0x10000, 7);
  CHECK(pages.read_value<std::uint64_t>(0x10000) != 7u);
  pages.forget();
  CHECK(pages.read_value<std::uint64_t>(0x10000) == 7u);
  std::vector<std::byte> large(bytes.size() - 8);
  CHECK(pages.read(0x10008, large));
  CHECK(std::equal(large.begin(), large.end(), bytes.begin() + 8));
}

TEST_CASE("page reader: what one look read, the next one reads at once and anew") {
  BufferReader memory;
  for (const Address at : {0x10000, 0x20000, 0x30000}) memory.add(at, std::vector<std::byte>(page));
  memory.add_value<std::uint64_t>(0x10008, 1);
  memory.add_value<std::uint64_t>(0x20008, 2);
  const CountingReader counting(memory);
  PageReader pages(counting);
  pages.begin();
  CHECK(counting.batches == 0);
  CHECK(pages.read_value<std::uint64_t>(0x10008) == 1u);
  CHECK(pages.read_value<std::uint64_t>(0x20008) == 2u);
  CHECK(pages.read_value<std::uint64_t>(0x40000) == std::nullopt);
  CHECK(counting.batches == 3);
  pages.forget();

  memory.add_value<std::uint64_t>(0x10008, 3);
  pages.begin();
  CHECK(counting.batches == 4);
  CHECK(counting.calls == 5);  // both pages; the one that could not be read is not tried
  CHECK(pages.read_value<std::uint64_t>(0x10008) == 3u);
  CHECK(counting.batches == 4);
  CHECK(pages.read_value<std::uint64_t>(0x30000) == 0u);
  CHECK(counting.batches == 5);
  pages.forget();

  pages.begin();  // one page of the first look was not wanted in the second
  CHECK(counting.batches == 6);
  CHECK(counting.calls == 8);
  CHECK(pages.read_value<std::uint64_t>(0x10008) == 3u);
  CHECK(pages.read_value<std::uint64_t>(0x30000) == 0u);
  CHECK(counting.batches == 6);
  CHECK(pages.read_value<std::uint64_t>(0x20008) == 2u);
  CHECK(counting.batches == 7);
}

TEST_CASE("overlay reader: copies are what was, the rest is what is") {
  BufferReader memory;
  memory.add_value<std::uint64_t>(0x1000, 1);
  memory.add_value<std::uint64_t>(0x1008, 2);
  OverlayReader overlay(memory);
  overlay.add(0x1000, std::vector<std::byte>(8, std::byte{9}));
  CHECK(overlay.read_value<std::uint64_t>(0x1000) == 0x0909090909090909u);
  CHECK(overlay.read_value<std::uint32_t>(0x1004) == 0x09090909u);
  CHECK(overlay.read_value<std::uint64_t>(0x1008) == 2u);
  CHECK(overlay.read_value<std::uint64_t>(0x1004) == 0x0000000200000000u);  // not wholly in the copy
  CHECK(overlay.read_value<std::uint64_t>(0x100c) == std::nullopt);
}
