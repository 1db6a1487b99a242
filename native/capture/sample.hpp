#pragma once

#include <optional>
#include <string>
#include <vector>

#include "capture/types.hpp"
#include "proc/threads.hpp"

// What is read of a process before anything that takes its mmap lock.
namespace hangtrace::capture {

/// A process at one moment: survives neither exit nor execve.
struct Identity {
  std::uint64_t start_ticks = 0;
  std::uint64_t code_start = 0;
  std::uint64_t stack_start = 0;
  friend bool operator==(const Identity&, const Identity&) = default;
};

Identity identity_of(const proc::Stat& stat);

struct Sampled {
  Process process;                           // threads with all of stat and wchan
  std::optional<proc::TaskDirectory> tasks;  // absent if the process is gone
  Identity identity;
  int memory_id = 0;  // thread id through which memory is reached: a live one, the leader may have ended
};

/// Lists threads with stat and wait channel, and says in `process.error` if memory must not or cannot be
/// read.
Sampled sample(const std::string& proc_root, int pid);

/// Fills run time, slices and system call of every thread.
void sample_activity(Sampled& sampled);

/// Reads schedstat again and marks threads that ran since sample_activity.
void mark_moved(Sampled& sampled);

}  // namespace hangtrace::capture
