// Recorded moments of programs for x86-64 and aarch64, unwound on any machine, against the frames gdb found.
#include <doctest/doctest.h>

#include "tests/snapshot.hpp"
#include "unwind/machine_code.hpp"

using namespace hangtrace;
using namespace hangtrace::tests;
using unwind::End;
using unwind::FoundBy;

namespace {

struct Expected {
  const char* name;
  // By PC and SP alone: how many frames, and why no more.
  std::size_t frames;
  End end;
};

constexpr std::size_t all = 0;

// On aarch64 stop_here has its return address in a register only.
const std::vector<Expected> recorded{
    {"x86_64_plain", all, End::thread_start},
    {"x86_64_frame_pointer", all, End::thread_start},
    {"x86_64_alloca", all, End::thread_start},
    {"x86_64_aligned", all, End::thread_start},
    {"x86_64_aligned_alloca", all, End::thread_start},
    {"x86_64_in_alloca", all, End::thread_start},
    {"x86_64_signal", all, End::thread_start},
    {"x86_64_thread", all, End::thread_start},
    {"x86_64_stub", all, End::thread_start},
    {"x86_64_vdso", 1, End::unknown_register},  // needs rbp; what calls it is in no snapshot
    {"aarch64_plain", 1, End::unknown_register},
    {"aarch64_no_frame_pointer", 1, End::unknown_register},
    {"aarch64_alloca", 1, End::unknown_register},
    {"aarch64_aligned", 1, End::unknown_register},
    {"aarch64_aligned_alloca", 1, End::unknown_register},
    {"aarch64_in_plain", all, End::thread_start},
    {"aarch64_in_alloca", all, End::thread_start},
    {"aarch64_in_clang_frame", all, End::thread_start},
    {"aarch64_signal", 1, End::unknown_register},
    {"aarch64_thread", 1, End::unknown_register},
    {"aarch64_signed", 1, End::unknown_register},
};

std::string path_of(const std::string& name) {
  return std::string(HT_TEST_DATA) + "/unwind/" + name + ".txt";
}

std::string print(const std::vector<memory::Address>& addresses) {
  std::ostringstream text;
  text << std::hex;
  for (const memory::Address address : addresses) text << address << ' ';
  return text.str();
}

std::string print(const unwind::Stack& stack) {
  std::vector<memory::Address> result;
  for (const unwind::Frame& frame : stack.frames) result.push_back(frame.pc);
  return print(result);
}

}  // namespace

TEST_CASE("all registers give the frames that gdb finds") {
  for (const Expected& expected : recorded) {
    CAPTURE(std::string(expected.name));
    Snapshot snapshot(path_of(expected.name));
    REQUIRE(snapshot.frames().size() > 3);
    const unwind::Stack stack = snapshot.unwind(snapshot.registers());
    CHECK(print(stack) == print(snapshot.frames()));
    CHECK(stack.complete());
    for (std::size_t i = 0; i < stack.frames.size(); ++i)
      CHECK(stack.frames[i].found_by == (i == 0 ? FoundBy::leaf : FoundBy::cfi));
  }
}

TEST_CASE("PC and SP alone give the same frames or fewer") {
  for (const Expected& expected : recorded) {
    CAPTURE(std::string(expected.name));
    Snapshot snapshot(path_of(expected.name));
    const unwind::Stack stack = snapshot.unwind(snapshot.pc_sp());
    std::vector<memory::Address> wanted = snapshot.frames();
    if (expected.frames != all) wanted.resize(expected.frames);
    CHECK(print(stack) == print(wanted));
    CHECK(stack.end == expected.end);
  }
}

TEST_CASE("signal frames are marked, and the interrupted instruction is looked up as it is") {
  for (const char* name : {"x86_64_signal", "aarch64_signal"}) {
    CAPTURE(std::string(name));
    Snapshot snapshot(path_of(name));
    const unwind::Stack stack = snapshot.unwind(snapshot.registers());
    REQUIRE(stack.frames.size() > 4);
    int signals = 0;
    for (std::size_t i = 0; i + 1 < stack.frames.size(); ++i) {
      if (!stack.frames[i].signal_frame) continue;
      ++signals;
      CHECK(stack.frames[i + 1].va == stack.frames[i + 1].pc - stack.frames[i + 1].bias);
    }
    CHECK(signals == 1);
  }
}

TEST_CASE("a frame pointer that is needed and not known is found, and the frame says how") {
  const std::pair<const char*, FoundBy> cases[] = {{"x86_64_in_alloca", FoundBy::scan},
                                                   {"aarch64_in_alloca", FoundBy::scan},
                                                   {"aarch64_in_clang_frame", FoundBy::prologue}};
  for (const auto& [name, found_by] : cases) {
    CAPTURE(std::string(name));
    Snapshot snapshot(path_of(name));
    const unwind::Stack plain = snapshot.unwind(snapshot.pc_sp(), {.repair = false});
    CHECK(plain.frames.size() == 1);
    CHECK(plain.end == End::unknown_register);
    const unwind::Stack stack = snapshot.unwind(snapshot.pc_sp());
    REQUIRE(stack.frames.size() > 1);
    CHECK(stack.frames[1].found_by == found_by);
  }
}
