#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

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

/// What is kept of a process between looks: open files, what was read of threads asleep, and what stays the
/// same as long as it runs the same program.
struct TaskRecords {
  Identity identity;
  std::optional<bool> is_32bit;
  std::optional<bool> inside;  // a pid namespace of its own: its thread ids are others than those we see
  std::unique_ptr<proc::TaskDirectory> directory;
  std::unordered_map<int, Thread> asleep;
};

struct Sampled {
  Process process;                       // threads with all that procfs says of them
  std::shared_ptr<TaskRecords> records;  // null if the process is gone
  proc::TaskDirectory* tasks = nullptr;  // that of the records
  Identity identity;
  int memory_id = 0;  // thread id through which memory is reached: a live one, the leader may have ended
};

/// Lists the threads with what they do, and says in `process.error` if memory must not or cannot be read.
/// `records` are those of an earlier look at this pid, or null.
Sampled sample(const std::string& proc_root, int pid, std::shared_ptr<TaskRecords> records,
               const std::shared_ptr<proc::DescriptorBudget>& budget);

/// Whether a thread in an uninterruptible sleep waits for the lock of its memory map, or sleeps with it. The
/// wait channel, or the system call where that tells nothing.
bool waits_for_map(std::string_view wait_channel, std::int64_t syscall);

/// What an errno of procfs means for the process.
Error error_of(int number);

/// Whether a thread has run since its times were read, or may have.
bool has_run(const Sampled& sampled, const Thread& thread);

/// Begins the moment anew: reads again what threads do that ran since they were sampled.
void sample_again(Sampled& sampled);

/// Ends the moment: marks threads that ran in it.
void mark_moved(Sampled& sampled);

}  // namespace hangtrace::capture
