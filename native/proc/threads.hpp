#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "memory/reader.hpp"
#include "proc/files.hpp"

// What procfs says about single threads. Nothing here takes the target's mmap lock.
namespace hangtrace::proc {

using memory::Address;

/// /proc/PID/stat or /proc/PID/task/TID/stat, fields by their numbers in proc_pid_stat(5).
struct Stat {
  int id = 0;                      // 1
  std::string comm;                // 2, may hold spaces, parentheses and newlines
  char state = '?';                // 3
  int parent = 0;                  // 4
  std::uint64_t flags = 0;         // 9, PF_* of the kernel
  std::uint64_t minor_faults = 0;  // 10
  std::uint64_t major_faults = 0;  // 12
  std::uint64_t user_ticks = 0;    // 14
  std::uint64_t system_ticks = 0;  // 15
  std::uint64_t start_ticks = 0;   // 22, since boot
  // Where the program's code and first stack frame lie: changes with execve. 0 without the right to see it.
  std::uint64_t code_start = 0;   // 26
  std::uint64_t stack_start = 0;  // 28
  int cpu = -1;                   // 39, last one it ran on

  bool kernel_thread() const { return (flags & 0x00200000) != 0; }  // PF_KTHREAD
};

std::optional<Stat> parse_stat(std::string_view text);
std::optional<Stat> read_process_stat(const std::string& proc_root, int pid);

struct SchedStat {
  std::uint64_t run_ns = 0;
  std::uint64_t wait_ns = 0;
  std::uint64_t slices = 0;
  friend bool operator==(const SchedStat&, const SchedStat&) = default;
};

std::optional<SchedStat> parse_schedstat(std::string_view text);

enum class Activity {
  running,     // on a CPU, or runnable
  in_syscall,  // number, arguments, sp and pc are valid
  outside,     // blocked outside of a system call (page fault, signal stop): sp and pc are valid
  unknown,     // could not be read
};

struct SyscallState {
  Activity activity = Activity::unknown;
  std::int64_t number = -1;
  std::array<std::uint64_t, 6> arguments{};
  Address stack_pointer = 0;
  Address program_counter = 0;
};

SyscallState parse_syscall(std::string_view text);

/// Function names of a kernel stack, innermost first, from the text of a `stack` file.
std::vector<std::string> parse_kernel_stack(std::string_view text);

/// How many descriptors may be kept open between looks, by all that share it. From several threads.
class DescriptorBudget {
 public:
  explicit DescriptorBudget(int limit) : left_(limit) {}
  /// What the process may still open, less a reserve for everything else.
  static int available();

  bool take();
  bool exhausted() const { return left_.load(std::memory_order_relaxed) <= 0; }
  void give_back() { left_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int> left_;
};

/// The task directory of one process. Its descriptor is kept, so all reads are of the same process, even if
/// the pid is used again meanwhile. A thread that vanished gives nullopt. One thread at a time.
class TaskDirectory {
 public:
  /// Null with errno set if it cannot be opened. With a budget, files that are read again and again stay
  /// open.
  static std::unique_ptr<TaskDirectory> open(const std::string& proc_root, int pid,
                                             std::shared_ptr<DescriptorBudget> budget = nullptr);
  TaskDirectory(const TaskDirectory&) = delete;
  TaskDirectory& operator=(const TaskDirectory&) = delete;
  ~TaskDirectory();

  /// Whether the budget allows to keep it.
  bool may_stay_open() const { return counted_; }

  std::vector<int> list() const;  // sorted
  /// Closes what is kept of threads that are not in the sorted list.
  void keep_only(std::span<const int> tids);

  std::optional<Stat> stat(int tid) const;
  std::optional<SchedStat> schedstat(int tid) const;
  SyscallState syscall(int tid) const;
  /// The kernel function that a thread sleeps in, which had this state; "" where the kernel names none.
  std::optional<std::string> wait_channel(int tid, char state) const;
  std::vector<std::string> kernel_stack(int tid) const;  // empty without CAP_SYS_ADMIN
  /// Id of the thread in its own pid namespace, which is what the program itself writes into its locks.
  std::optional<int> id_inside(int tid) const;

 private:
  enum Kept { kept_schedstat, kept_syscall, kept_count };
  using Files = std::array<Descriptor, kept_count>;
  using Buffer = std::array<char, 1024>;

  TaskDirectory(Descriptor directory, std::shared_ptr<DescriptorBudget> budget)
      : directory_(std::move(directory)),
        budget_(std::move(budget)),
        counted_(budget_ != nullptr && budget_->take()) {}
  Descriptor open_file(int tid, const char* name) const;
  std::optional<std::string> read_all(int tid, const char* name, std::size_t expected_size) const;
  std::optional<std::string_view> read_once(int tid, const char* name, Buffer& buffer) const;
  std::optional<std::string_view> read_kept(int tid, Kept which, Buffer& buffer) const;
  void close_kept(Files& files) const;

  Descriptor directory_;
  std::shared_ptr<DescriptorBudget> budget_;
  bool counted_;
  // A thread's descriptor never shows another thread: it fails once the thread is gone.
  mutable std::unordered_map<int, Files> kept_;
};

}  // namespace hangtrace::proc
