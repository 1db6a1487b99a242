#include "capture/sample.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "proc/files.hpp"

namespace hangtrace::capture {

namespace {

Error error_of(int number) {
  switch (number) {
    case EACCES:
    case EPERM:
      return Error::not_permitted;
    case ENOENT:
    case ESRCH:
      return Error::gone;
    default:
      return Error::unreadable;
  }
}

bool ended(char state) {
  return state == 'Z' || state == 'X' || state == 'x';
}

// Kernel functions in which a thread waits for the mmap lock or sleeps while it has it. The wait channel
// names the caller of the lock functions, so the system calls that take the lock show up by their own names
// too.
bool is_mmap_lock_channel(std::string_view channel) {
  constexpr std::array<std::string_view, 12> prefixes{
      "rwsem_down_",   "__vma_start_write", "vma_start_write", "vma_start_read",
      "vm_mmap_pgoff", "do_vma_munmap",     "do_vmi_",         "__vm_munmap",
      "vm_munmap",     "mmap_write_lock",   "mmap_read_lock",  "do_mprotect_pkey"};
  return std::ranges::any_of(prefixes,
                             [channel](std::string_view prefix) { return channel.starts_with(prefix); });
}

bool takes_mmap_lock(const proc::SyscallState& call) {
  if (call.activity != proc::Activity::in_syscall) {
    return false;
  }
  switch (call.number) {
    case SYS_mmap:
    case SYS_munmap:
    case SYS_mprotect:
    case SYS_mremap:
    case SYS_brk:
      return true;
    default:
      return false;
  }
}

// A thread that waits for the lock or sleeps with it, and does not get on: memory of the process is out of
// reach.
std::optional<int> mmap_lock_waiter(const proc::TaskDirectory& tasks, const std::vector<Thread>& threads) {
  constexpr int looks = 3;
  constexpr timespec pause{0, 5'000'000};  // a lock that is merely busy moves on within a few milliseconds
  struct Suspect {
    int tid;
    proc::SchedStat before;
  };
  std::vector<Suspect> suspects;
  for (const Thread& thread : threads) {
    if (thread.state != 'D') {
      continue;
    }
    if (is_mmap_lock_channel(thread.wait_channel.value_or("")) ||
        takes_mmap_lock(tasks.syscall(thread.tid))) {
      if (const auto stat = tasks.schedstat(thread.tid)) {
        suspects.push_back({thread.tid, *stat});
      }
    }
  }
  for (int look = 0; look < looks && !suspects.empty(); ++look) {
    nanosleep(&pause, nullptr);
    std::erase_if(suspects, [&tasks](const Suspect& suspect) {
      return tasks.schedstat(suspect.tid) != suspect.before;
    });
  }
  if (suspects.empty()) {
    return std::nullopt;
  }
  return suspects.front().tid;
}

// Whether the program is a 32-bit one; nullopt with errno if its file cannot be opened.
std::optional<bool> is_32bit(const std::string& proc_root, int tid) {
  const proc::Descriptor file(open(proc::process_path(proc_root, tid, "exe").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    return std::nullopt;
  }
  std::array<char, EI_NIDENT> ident{};
  if (pread(file.get(), ident.data(), ident.size(), 0) != static_cast<ssize_t>(ident.size())) {
    return false;
  }
  return ident[EI_CLASS] == ELFCLASS32;
}

}  // namespace

Identity identity_of(const proc::Stat& stat) {
  return {stat.start_ticks, stat.code_start, stat.stack_start};
}

Sampled sample(const std::string& proc_root, int pid) {
  Sampled sampled;
  Process& process = sampled.process;
  process.pid = pid;
  errno = ENOENT;
  const auto leader = proc::read_process_stat(proc_root, pid);
  if (!leader) {
    process.error = error_of(errno);
    return sampled;
  }
  sampled.identity = identity_of(*leader);
  sampled.tasks = proc::TaskDirectory::open(proc_root, pid);
  if (!sampled.tasks) {
    process.error = error_of(errno);
    return sampled;
  }
  for (const int tid : sampled.tasks->list()) {
    const auto stat = sampled.tasks->stat(tid);
    if (!stat) {
      continue;  // ended since it was listed
    }
    Thread thread;
    thread.tid = tid;
    thread.comm = stat->comm;
    thread.state = stat->state;
    thread.start_ticks = stat->start_ticks;
    thread.cpu = stat->cpu;
    thread.user_ticks = stat->user_ticks;
    thread.system_ticks = stat->system_ticks;
    thread.minor_faults = stat->minor_faults;
    thread.major_faults = stat->major_faults;
    thread.wait_channel = sampled.tasks->wait_channel(tid);
    if (thread.state == 'D') {
      thread.kernel_stack = sampled.tasks->kernel_stack(tid);
    }
    process.threads.push_back(std::move(thread));
  }
  if (leader->kernel_thread()) {
    process.error = Error::kernel_thread;
    return sampled;
  }
  const auto live =
      std::ranges::find_if(process.threads, [](const Thread& thread) { return !ended(thread.state); });
  if (live == process.threads.end()) {
    process.error = process.threads.empty() ? Error::gone : Error::zombie;
    return sampled;
  }
  sampled.memory_id = ended(leader->state) ? live->tid : pid;
  if (ended(leader->state)) {
    process.notes.emplace_back("the main thread has ended, others go on");
  }
  const auto bits32 = is_32bit(proc_root, sampled.memory_id);
  if (!bits32) {
    process.error = error_of(errno);
  } else if (*bits32) {
    process.error = Error::bits32;
  } else if (const auto tid = mmap_lock_waiter(*sampled.tasks, process.threads)) {
    process.error = Error::mmap_lock_held;
    process.error_tid = tid;
  }
  return sampled;
}

void sample_activity(Sampled& sampled) {
  for (Thread& thread : sampled.process.threads) {
    if (const auto stat = sampled.tasks->schedstat(thread.tid)) {
      thread.run_ns = stat->run_ns;
      thread.slices = stat->slices;
    }
    if (ended(thread.state)) {
      continue;
    }
    const proc::SyscallState call = sampled.tasks->syscall(thread.tid);
    // Threads that live in the kernel alone, also workers of a program's io_uring, have no user registers.
    if (call.activity != proc::Activity::running && call.program_counter == 0) {
      continue;
    }
    switch (call.activity) {
      case proc::Activity::running:
        thread.running = true;
        break;
      case proc::Activity::unknown:
        break;
      case proc::Activity::in_syscall:
      case proc::Activity::outside:
        thread.syscall = call.number;
        thread.arguments = call.arguments;
        thread.stack_pointer = call.stack_pointer;
        thread.program_counter = call.program_counter;
        break;
    }
  }
}

void mark_moved(Sampled& sampled) {
  for (Thread& thread : sampled.process.threads) {
    const auto stat = sampled.tasks->schedstat(thread.tid);
    if (!stat || thread.run_ns != stat->run_ns || thread.slices != stat->slices || thread.running) {
      thread.moved = true;
    }
  }
}

}  // namespace hangtrace::capture
