#include <doctest/doctest.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "elf/perf_map.hpp"
#include "tests/fake_proc.hpp"

using namespace hangtrace;
using namespace hangtrace::tests;

namespace {

// A recorded process 42 that is number 7 in its own namespace.
struct Recorded : FakeProc {
  Recorded() { status(::geteuid()); }
  void status(unsigned user) const {
    const std::string id = std::to_string(user);
    write("42/status", "Name:\tjit\nTgid:\t42\nPid:\t42\nUid:\t" + id + "\t" + id + "\t" + id + "\t" + id +
                           "\nNSpid:\t42\t7\n");
  }
  void map(std::string_view text) const { write("42/root/tmp/perf-7.map", text); }
};

std::string name(elf::PerfMap& map, elf::Address address) {
  const auto found = map.names(std::span(&address, 1)).front();
  return found ? found->name : "";
}

}  // namespace

TEST_CASE("a perf map names the code it lists, and the last line of a place counts") {
  const Recorded proc;
  proc.map("1000 20 first\n0x2000 10 with spaces in it\nbroken\n3000 8 old\n3000 10 new\n1020 1\n4000 8 cut");
  elf::PerfMap map(proc.root(), 42);
  CHECK(name(map, 0x1000) == "first");
  CHECK(name(map, 0x101f) == "first");
  CHECK(name(map, 0x1020) == "");
  CHECK(name(map, 0x200f) == "with spaces in it");
  CHECK(name(map, 0x3004) == "new");
  CHECK(name(map, 0x4004) == "");  // its line is still being written
  CHECK(name(map, 0xffffffffffffffff) == "");
}

TEST_CASE("a perf map from before the program began belonged to another process of that number") {
  const Recorded proc;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  proc.write("42/stat", "42 (jit) S 1 42 42 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 " +
                            std::to_string(now.tv_sec * sysconf(_SC_CLK_TCK)) +
                            " 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
  proc.map("1000 20 mine\n");
  elf::PerfMap map(proc.root(), 42);
  CHECK(name(map, 0x1000) == "mine");
  using namespace std::chrono_literals;
  const std::filesystem::path file = proc.root() + "/42/root/tmp/perf-7.map";
  std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) - 24h);
  CHECK(name(map, 0x1000) == "");
}

TEST_CASE("a perf map that has grown is read again") {
  const Recorded proc;
  proc.map("1000 20 first\n");
  elf::PerfMap map(proc.root(), 42);
  CHECK(name(map, 0x5000) == "");
  proc.map("1000 20 first\n5000 20 second\n");
  CHECK(name(map, 0x5000) == "second");
}

TEST_CASE("a long perf map is read across its parts") {
  const Recorded proc;
  std::string text;
  for (int i = 0; i < 60000; ++i) {
    char line[64];
    std::snprintf(line, sizeof line, "%x 10 function_%d\n", 0x100000 + 16 * i, i);
    text += line;
  }
  proc.map(text);
  elf::PerfMap map(proc.root(), 42);
  std::vector<elf::Address> addresses;
  for (int i = 0; i < 60000; i += 7) addresses.push_back(static_cast<elf::Address>(0x100008 + 16 * i));
  const auto found = map.names(addresses);
  for (int i = 0; i < 60000; i += 7) {
    REQUIRE(found[static_cast<std::size_t>(i / 7)]);
    CHECK(found[static_cast<std::size_t>(i / 7)]->name == "function_" + std::to_string(i));
  }
}

TEST_CASE("a perf map of a stranger, or that is no file, is not believed") {
  const Recorded proc;
  proc.map("1000 20 first\n");
  const auto file = proc.root() + "/42/root/tmp/perf-7.map";
  elf::PerfMap map(proc.root(), 42);
  CHECK(name(map, 0x1000) == "first");
  proc.status(::geteuid() + 1);
  if (::geteuid() == 0) {
    CHECK(name(map, 0x1000) == "first");  // root's
    REQUIRE(::chown(file.c_str(), 12345, 12345) == 0);
  }
  CHECK(name(map, 0x1000) == "");
  std::filesystem::remove(file);
  CHECK(name(map, 0x1000) == "");
  std::filesystem::create_directories(file);
  CHECK(name(map, 0x1000) == "");
}
