// Unwinds real blocked threads from PC and SP alone and compares with the return addresses they noted
// themselves.
#include <doctest/doctest.h>

#ifdef HT_UNWIND_TARGETS
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "elf/process_modules.hpp"
#include "memory/process_reader.hpp"
#include "proc/files.hpp"
#include "proc/maps.hpp"
#include "proc/threads.hpp"
#include "registers/task_registers.hpp"
#include "tests/program.hpp"
#include "tests/temporary_directory.hpp"
#include "unwind/naming.hpp"
#include "unwind/unwinder.hpp"

namespace {

using namespace hangtrace;
using Clock = std::chrono::steady_clock;

constexpr auto patience = std::chrono::seconds(60);
constexpr std::size_t copied = 32 << 10;

struct NotedThread {
  int tid = 0;
  std::string shape;
  std::string way;  // how the shape was called
  std::string call;
  std::int64_t syscall_number = 0;
  std::vector<memory::Address> returns;  // innermost first
};

// The target program, of whose threads each notes its frames.
class Target {
 public:
  explicit Target(const std::string& path) : path_(path), program_(path) { read_notes(program_.output()); }

  int pid() const { return program_.pid(); }
  const std::string& path() const { return path_; }
  const std::vector<NotedThread>& threads() const { return threads_; }

 private:
  void read_notes(int from) {
    std::string text;
    const auto deadline = Clock::now() + patience;
    while (text.find("end\n") == std::string::npos) {
      REQUIRE(Clock::now() < deadline);
      pollfd descriptor{from, POLLIN, 0};
      REQUIRE(::poll(&descriptor, 1, 1000) >= 0);
      if ((descriptor.revents & (POLLIN | POLLHUP)) == 0) continue;
      char piece[4096];
      const ssize_t count = ::read(from, piece, sizeof piece);
      REQUIRE(count > 0);
      text.append(piece, static_cast<std::size_t>(count));
    }
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line) && line != "end";) {
      std::istringstream words(line);
      NotedThread& thread = threads_.emplace_back();
      words >> thread.tid >> thread.shape >> thread.way >> thread.call >> thread.syscall_number >> std::hex;
      for (memory::Address address; words >> address;) thread.returns.push_back(address);
    }
  }

  std::string path_;
  tests::Program program_;
  std::vector<NotedThread> threads_;
};

// A thread is on its way when it has noted its frames; this waits until it has arrived.
proc::SyscallState wait_until_blocked(const proc::TaskDirectory& tasks, const NotedThread& thread) {
  const auto deadline = Clock::now() + patience;
  for (;;) {
    const proc::SyscallState state = tasks.syscall(thread.tid);
    if (state.activity == proc::Activity::in_syscall && state.number == thread.syscall_number) return state;
    REQUIRE(Clock::now() < deadline);
    ::poll(nullptr, 0, 1);
  }
}

std::string print(const unwind::Stack& stack, const std::vector<unwind::FrameName>& names) {
  std::ostringstream text;
  for (std::size_t i = 0; i < stack.frames.size(); ++i) {
    text << "  " << std::hex << stack.frames[i].pc << " " << names[i].function << " by "
         << static_cast<int>(stack.frames[i].found_by) << "\n";
  }
  return text.str() + "  " + unwind::describe(stack.end);
}

struct Outcome {
  int threads = 0;
  int complete = 0;
  int wrong = 0;
  int unexpected = 0;
};

// A function that was called by name is always found; where a pointer or a signal was used, the caller can be
// in doubt, and then the stack ends there.
bool must_be_complete(const NotedThread& thread) {
  return thread.way == "direct" && thread.shape != "in_signal" && thread.shape != "on_other_stack" &&
         thread.shape != "through_pointer";
}

// The program's own frames must be those noted, in their order, nothing missing between and nothing more; a
// stack that was cut short must be right as far as it goes. Not noted are the PC of the innermost function
// and, under a signal handler (which notes the trampoline), that of the function which raised the signal.
bool agrees(const unwind::Stack& stack, const NotedThread& thread, const std::string& program) {
  const bool signalled = thread.shape == "in_signal" || thread.shape == "on_other_stack";
  constexpr memory::Address not_noted = 0;
  std::vector<memory::Address> expected{not_noted};
  if (signalled) expected.push_back(not_noted);
  // The outermost one lies in the C library.
  expected.insert(expected.end(), thread.returns.begin() + (signalled ? 1 : 0), thread.returns.end() - 1);

  std::vector<memory::Address> own;
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < stack.frames.size(); ++i) {
    if (stack.frames[i].module == nullptr || stack.frames[i].module->path() != program) continue;
    own.push_back(stack.frames[i].pc);
    positions.push_back(i);
  }
  if (own.size() > expected.size() || (stack.complete() && own.size() != expected.size())) return false;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const bool noted = std::ranges::count(thread.returns, own[i]) != 0;
    if (expected[i] == not_noted ? noted : own[i] != expected[i]) return false;
  }
  // Frames of the C library: at the thread's start, in the blocking call, and around a signal.
  if (own.empty()) return !stack.complete();
  // At most pthread_cond_wait or nanosleep, what they share with their timed variants, and since glibc 2.41
  // the three functions through which every cancellation point goes.
  constexpr std::size_t deepest_call = 5;
  const std::size_t library_inside = positions.front();
  const std::size_t between = positions.back() + 1 - positions.front() - own.size();
  if (library_inside > deepest_call || (signalled ? between > 4 : between != 0)) return false;
  return !stack.complete() || (stack.frames.size() == positions.back() + 3 &&
                               stack.frames[positions.back() + 1].pc == thread.returns.back());
}

// Looks at the running target through `proc_root`; its own functions must have names if `named`.
// With `from_kernel`, unwinding begins with the registers that the kernel shows.
Outcome examine(const Target& target, unwind::Options options = {}, const std::string& proc_root = "/proc",
                bool named = true, registers::TaskRegisters* from_kernel = nullptr) {
  const auto tasks = proc::TaskDirectory::open("/proc", target.pid());
  REQUIRE(tasks);
  std::vector<proc::SyscallState> states;
  for (const NotedThread& thread : target.threads()) states.push_back(wait_until_blocked(*tasks, thread));
  const auto mappings = proc::read_maps("/proc", target.pid());
  REQUIRE(mappings);
  const memory::ProcessReader reader(target.pid());
  elf::ModuleCache modules;
  unwind::UnwindCache cache;
  elf::ProcessModules process(modules, proc_root, target.pid(), *mappings, reader);
  const unwind::Unwinder unwinder(process, cache, options);

  std::unordered_map<int, registers::TaskRecord> records;
  if (from_kernel != nullptr) {
    std::vector<int> tids;
    for (const NotedThread& thread : target.threads()) tids.push_back(thread.tid);
    const int pid = target.pid();
    records = from_kernel->read(std::span(&pid, 1), tids);
    REQUIRE(from_kernel->status().state == registers::RungState::used);
  }

  std::vector<unwind::Stack> stacks;
  for (const proc::SyscallState& state : states) {
    const proc::Mapping* mapping = proc::find_mapping(*mappings, state.stack_pointer);
    REQUIRE(mapping != nullptr);
    std::vector<std::byte> copy(std::min<std::size_t>(copied, mapping->end - state.stack_pointer));
    REQUIRE(reader.read(state.stack_pointer, copy));
    auto start = unwind::Registers::from_pc_sp(state.program_counter, state.stack_pointer);
    if (from_kernel != nullptr) {
      const registers::TaskRecord& record = records.at(target.threads()[stacks.size()].tid);
      CHECK(record.words[registers::pt_regs_rip] == state.program_counter);
      CHECK(record.words[registers::pt_regs_rsp] == state.stack_pointer);
      REQUIRE(registers::from_pt_regs(record.words, start));
    }
    stacks.push_back(unwinder.unwind(start, {state.stack_pointer, copy}));
  }
  const unwind::NamingJob job{&process, stacks};
  const auto names = unwind::name_stacks(std::span(&job, 1)).front();

  Outcome outcome;
  // As the mappings name it, also when it was deleted.
  const std::string& path = target.path();
  for (std::size_t i = 0; i < stacks.size(); ++i) {
    const NotedThread& thread = target.threads()[i];
    ++outcome.threads;
    outcome.complete += stacks[i].complete() ? 1 : 0;
    const bool right = agrees(stacks[i], thread, path);
    if (!right) ++outcome.wrong;
    if (!right || (must_be_complete(thread) && options.repair && !stacks[i].complete())) {
      ++outcome.unexpected;
      MESSAGE(thread.way << " " << thread.shape << " in " << thread.call << "\n"
                         << print(stacks[i], names[i]));
    }
    for (std::size_t f = 0; f < stacks[i].frames.size(); ++f) {
      const unwind::Frame& frame = stacks[i].frames[f];
      if (frame.module == nullptr || frame.module->path() != path) continue;
      CHECK(named == !names[i][f].function.empty());
    }
  }
  return outcome;
}

}  // namespace

TEST_CASE("blocked threads of every build are found right from PC and SP alone") {
  for (const std::string build : {HT_UNWIND_TARGETS}) {
    CAPTURE(build);
    const Target target(build);
    const Outcome repaired = examine(target);
    CHECK(repaired.threads > 300);
    CHECK(repaired.wrong == 0);
    CHECK(repaired.unexpected == 0);
    const Outcome plain = examine(target, {.repair = false});
    CHECK(plain.wrong == 0);
    CHECK(plain.complete < repaired.complete);
    MESSAGE(build << ": of " << repaired.threads << " threads " << plain.complete << " complete by tables, "
                  << repaired.complete << " with repair");
  }
}

TEST_CASE("with the registers that the kernel shows every stack is complete, without a repair") {
  registers::TaskRegisters tasks;
  const int self = ::getpid();
  static_cast<void>(tasks.read(std::span(&self, 1), std::span(&self, 1)));
  if (tasks.status().state != registers::RungState::used) {
    MESSAGE("skipped: " << tasks.status().reason);
    return;
  }
  for (const std::string build : {HT_UNWIND_TARGETS}) {
    CAPTURE(build);
    const Target target(build);
    const Outcome outcome = examine(target, {.repair = false}, "/proc", true, &tasks);
    CHECK(outcome.wrong == 0);
    CHECK(outcome.complete == outcome.threads);
  }
}

TEST_CASE("a program whose file was deleted is still known") {
  const tests::TemporaryDirectory directory;
  const std::string path = directory.path() + "/target";
  std::filesystem::copy_file(*std::begin({HT_UNWIND_TARGETS}), path);
  const Target target(path);
  std::filesystem::remove(path);
  const Outcome outcome = examine(target);
  CHECK(outcome.wrong == 0);
  CHECK(outcome.unexpected == 0);
}

TEST_CASE("another file in the place of the program's is not taken for it") {
  const tests::TemporaryDirectory directory;
  const std::string path = directory.path() + "/target";
  const std::vector<std::string> builds{HT_UNWIND_TARGETS};
  std::filesystem::copy_file(builds[0], path);
  const Target target(path);
  std::filesystem::remove(path);
  std::filesystem::copy_file(builds[1], path);
  // A /proc without map_files (as seen without the capability for it), descriptors and exe link.
  const std::string process = directory.path() + "/" + std::to_string(target.pid());
  std::filesystem::create_directory(process);
  std::filesystem::create_directory_symlink("/", process + "/root");
  const Outcome outcome = examine(target, {}, directory.path(), false);
  CHECK(outcome.wrong == 0);
  CHECK(outcome.unexpected == 0);  // the tables come from the image in memory, which has no names
}

#else

TEST_CASE("blocked threads" * doctest::skip() * doctest::description("no evaluator for this machine yet")) {}

#endif
