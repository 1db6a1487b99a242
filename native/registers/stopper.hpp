#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "memory/reader.hpp"
#include "proc/threads.hpp"
#include "registers/machine.hpp"

namespace hangtrace::registers {

enum class StopOutcome {
  stopped,     // and goes on again
  left_alone,  // in an uninterruptible wait, stopped or traced already
  not_permitted,
  ended,
  timed_out,  // it did not stop in time, and is left alone again
  failed,
};

/// A thread as it was while it stood still.
struct Stopped {
  StopOutcome outcome = StopOutcome::failed;
  std::array<std::uint64_t, pt_regs_words> words{};
  std::optional<proc::SchedStat> activity;
  std::vector<std::byte> stack;       // from its stack pointer on; empty if it could not be read
  std::chrono::nanoseconds still{0};  // from the request on, so at least as long as it stood still
};

/// Why nothing came of it, for people; empty for `stopped`.
std::string describe(StopOutcome outcome);

struct StopRequest {
  int pid = 0;
  int tid = 0;
  /// Reads its memory; must be one that a kill ends, since the thread stands still meanwhile.
  const memory::Reader* reader = nullptr;
  std::function<std::size_t(memory::Address stack_pointer)> stack_size;
  std::chrono::microseconds deadline{20'000};  // for it to stop, which takes long only without a free CPU
};

/// Stops one thread with PTRACE_SEIZE and PTRACE_INTERRUPT, reads registers and stack, and lets it go on.
/// Works in a thread of its own: when that ends, as when this whole program is killed, the kernel lets a
/// thread go that it traced and forgets a stop that was asked for. Reports in /proc only (not another root).
Stopped stop_thread(const StopRequest& request);

}  // namespace hangtrace::registers
