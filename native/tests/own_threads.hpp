#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <sstream>
#include <string>
#include <vector>

#include "elf/process_modules.hpp"
#include "memory/process_reader.hpp"
#include "proc/maps.hpp"
#include "proc/threads.hpp"
#include "unwind/unwinder.hpp"

// Tests that unwind threads of their own.
namespace hangtrace::tests {

/// Waits for threads to block in a system call.
class ReadingThreads {
 public:
  ReadingThreads() { REQUIRE(tasks_); }

  /// What a thread that stores its id in `tid` is blocked in.
  proc::SyscallState await(const std::atomic<pid_t>& tid, std::int64_t number = SYS_read) const {
    for (;;) {
      REQUIRE(std::chrono::steady_clock::now() < deadline_);
      if (tid != 0) {
        const auto state = tasks_->syscall(tid);
        if (state.activity == proc::Activity::in_syscall && state.number == number) return state;
      }
      ::poll(nullptr, 0, 1);
    }
  }

 private:
  std::chrono::steady_clock::time_point deadline_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  decltype(proc::TaskDirectory::open("/proc", 0)) tasks_ = proc::TaskDirectory::open("/proc", ::getpid());
};

/// Unwinds threads of this process from what /proc shows of them.
class OwnUnwinder {
 public:
  unwind::Stack unwind(const proc::SyscallState& state) const {
    return unwinder_.unwind(unwind::Registers::from_pc_sp(state.program_counter, state.stack_pointer), {});
  }

  /// The same with the arguments of the call.
  unwind::Stack unwind_in_call(const proc::SyscallState& state) const {
    return unwinder_.unwind(
        unwinder_.in_system_call(state.program_counter, state.stack_pointer, state.arguments), {});
  }

 private:
  static std::vector<proc::Mapping> read_mappings() {
    auto mappings = proc::read_maps("/proc", ::getpid());
    REQUIRE(mappings);
    return *std::move(mappings);
  }

  std::vector<proc::Mapping> mappings_ = read_mappings();
  memory::ProcessReader reader_{::getpid()};
  elf::ModuleCache modules_;
  unwind::UnwindCache cache_;
  elf::ProcessModules process_{modules_, "/proc", ::getpid(), mappings_, reader_};
  unwind::Unwinder unwinder_{process_, cache_};
};

/// Where its frames are, how each was found, and why it ends.
inline std::string print(const unwind::Stack& stack) {
  std::ostringstream text;
  for (const unwind::Frame& frame : stack.frames)
    text << std::hex << frame.pc << (frame.module == nullptr ? " made" : "") << " by "
         << static_cast<int>(frame.found_by) << "; ";
  return text.str() + unwind::describe(stack.end);
}

}  // namespace hangtrace::tests
