#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "proc/pagemap.hpp"
#include "tests/fake_proc.hpp"

using namespace hangtrace;
using namespace hangtrace::proc;
using tests::FakeProc;

namespace {

constexpr std::uint64_t present = std::uint64_t{1} << 63;
constexpr std::uint64_t swapped = std::uint64_t{1} << 62;
constexpr std::uint64_t of_file = std::uint64_t{1} << 61;
constexpr std::uint64_t exclusive = std::uint64_t{1} << 56;

std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

std::shared_ptr<FrameSet> frames(std::initializer_list<std::uint64_t> numbers) {
  auto set = std::make_shared<FrameSet>();
  for (const std::uint64_t number : numbers) {
    set->insert(number);
  }
  return set;
}

// A pagemap of a process whose page n has entry n.
void record(const FakeProc& proc, const std::vector<std::uint64_t>& entries) {
  proc.write("5/pagemap", std::string_view(reinterpret_cast<const char*>(entries.data()),
                                           entries.size() * sizeof entries[0]));
}

char* anonymous(std::size_t size) {
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return static_cast<char*>(memory);
}

PageRange range_of(const char* memory, std::size_t size, bool sparse = false) {
  const auto start = reinterpret_cast<Address>(memory);
  return {start, start + size, sparse};
}

}  // namespace

TEST_CASE("pagemap: what the bits of an entry mean") {
  const std::uint64_t entries[] = {0,
                                   present | 7,
                                   present | exclusive | 8,
                                   present | of_file | 8,
                                   swapped | 99,
                                   present | 3,    // a page of zeros
                                   present | 600,  // one in the huge page of zeros
                                   present};       // whose number may not be seen
  PageCounts counts;
  FrameSet seen;
  count_pages(entries, ZeroPages{3, 512, 1024}, counts, seen);
  CHECK(counts == PageCounts{.present = 4, .swapped = 1, .file = 1, .exclusive = 1, .numbered = 3});
  CHECK(seen.size() == 2);
  CHECK(seen.contains(7));
  CHECK(seen.contains(8));
  CHECK_FALSE(seen.contains(3));
}

TEST_CASE("frames: each once, wherever it lies") {
  FrameSet set;
  constexpr std::uint64_t last = (std::uint64_t{1} << 55) - 1;
  for (const std::uint64_t frame : {std::uint64_t{0}, std::uint64_t{63}, std::uint64_t{64},
                                    std::uint64_t{32767}, std::uint64_t{32768}, last}) {
    CHECK(set.insert(frame));
    CHECK_FALSE(set.insert(frame));
    CHECK(set.contains(frame));
  }
  CHECK(set.size() == 6);
  CHECK_FALSE(set.contains(1));
  CHECK(set.count_without(*frames({64, last, 5})) == 4);
  CHECK(set.count_without(FrameSet()) == 6);
}

TEST_CASE("group: shared pages count once, and who has pages alone") {
  FrameGroup group;
  group.add(1, frames({1, 2, 3, 40000}));
  CHECK(group.unique() == 4);
  group.add(2, frames({3, 4}));
  group.add(3, frames({3, 40000}));
  CHECK(group.size() == 5);
  CHECK(group.unique() == 3);
  CHECK(group.unique_of(1) == 2u);
  CHECK(group.unique_of(2) == 1u);
  CHECK(group.unique_of(3) == 0u);
  CHECK_FALSE(group.unique_of(4));
}

TEST_CASE("walk: a recorded pagemap, in ranges, with an end") {
  const FakeProc proc;
  record(proc, {present | 1, present | 2, swapped, present | 4, present | 5});
  const auto page = static_cast<Address>(sysconf(_SC_PAGESIZE));
  const PageRange ranges[] = {{0, 2 * page, false}, {3 * page, 100 * page, false}};
  const Walk walk = walk_pages(proc.root(), 5, ranges, ZeroPages(), soon());
  CHECK(walk.end == WalkEnd::done);
  CHECK(walk.counts.present == 4);
  CHECK(walk.counts.swapped == 0);
  CHECK(walk.frames->size() == 4);
  // No kernel to search in it: read as it stands.
  const PageRange sparse[] = {{0, 5 * page, true}};
  const Walk searched = walk_pages(proc.root(), 5, sparse, ZeroPages(), soon());
  CHECK(searched.frames->size() == 4);
  CHECK(searched.counts.swapped == 1);
}

TEST_CASE("walk: time that is over, and a process that is gone") {
  const FakeProc proc;
  record(proc, {present | 1});
  const PageRange ranges[] = {{0, 4096, false}};
  CHECK(walk_pages(proc.root(), 5, ranges, ZeroPages(), std::chrono::steady_clock::now()).end ==
        WalkEnd::out_of_time);
  const Walk gone = walk_pages(proc.root(), 6, ranges, ZeroPages(), soon());
  CHECK(gone.end == WalkEnd::failed);
  CHECK(gone.error == ENOENT);
}

TEST_CASE("walk: of ourselves, pages of zeros left out, a hole searched") {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  constexpr std::size_t pages = 64;
  char* const memory = anonymous(pages * page);
  for (std::size_t i = 0; i < pages / 2; ++i) {
    memory[i * page] = 1;
  }
  // Read only: the kernel's page of zeros.
  static_cast<void>(*static_cast<volatile char*>(memory + (pages - 1) * page));
  const PageRange ranges[] = {range_of(memory, pages * page)};
  const ZeroPages zero = ZeroPages::find();
  const Walk walk = walk_pages("/proc", getpid(), ranges, zero, soon());
  REQUIRE(walk.end == WalkEnd::done);
  if (walk.counts.numbered == 0) {
    MESSAGE("skipped: frames are shown with CAP_SYS_ADMIN only");
    return;
  }
  CHECK(walk.counts.present == pages / 2);
  CHECK(walk.counts.exclusive == pages / 2);
  CHECK(walk.frames->size() == pages / 2);
  munmap(memory, pages * page);

  constexpr std::size_t reserved = std::size_t{16} << 30;
  void* const hole =
      mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(hole != MAP_FAILED);
  madvise(hole, reserved, MADV_NOHUGEPAGE);
  auto* const bytes = static_cast<char*>(hole);
  for (const std::size_t at : {std::size_t{0}, reserved / 2 + page, reserved - page}) {
    bytes[at] = 1;
  }
  const PageRange wide[] = {range_of(bytes, reserved, true)};
  const Walk found = walk_pages("/proc", getpid(), wide, zero, soon());
  CHECK(found.end == WalkEnd::done);
  CHECK(found.counts.present == 3);
  munmap(hole, reserved);
}

TEST_CASE("group: pages that a child has copied on write") {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  constexpr std::size_t pages = 256;
  constexpr std::size_t written = 16;
  char* const memory = anonymous(pages * page);
  madvise(memory, pages * page, MADV_NOHUGEPAGE);
  std::memset(memory, 1, pages * page);
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    for (std::size_t i = 0; i < written; ++i) {
      memory[i * page] = 2;
    }
    const bool told = write(ready[1], "x", 1) == 1;
    while (told) {
      pause();
    }
    _exit(1);
  }
  REQUIRE(child > 0);
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  const PageRange ranges[] = {range_of(memory, pages * page)};
  const ZeroPages zero = ZeroPages::find();
  FrameGroup group;
  Walk mine = walk_pages("/proc", getpid(), ranges, zero, soon());
  Walk theirs = walk_pages("/proc", child, ranges, zero, soon());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  munmap(memory, pages * page);
  CHECK(mine.counts.present == pages);
  CHECK(theirs.counts.exclusive == written);
  if (mine.counts.numbered == 0) {
    MESSAGE("skipped: frames are shown with CAP_SYS_ADMIN only");
    return;
  }
  group.add(1, mine.frames);
  group.add(2, theirs.frames);
  CHECK(group.size() == pages + written);
  CHECK(group.unique() == 2 * written);
  CHECK(group.unique_of(2) == written);
}
