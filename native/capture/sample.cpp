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

bool takes_mmap_lock(std::int64_t syscall) {
  switch (syscall) {
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

}  // namespace

bool waits_for_map(std::string_view wait_channel, std::int64_t syscall) {
  return is_mmap_lock_channel(wait_channel) || takes_mmap_lock(syscall);
}

namespace {

// A thread that waits for the lock or sleeps with it, and does not get on: memory of the process is out of
// reach.
std::optional<int> mmap_lock_waiter(const proc::TaskDirectory& tasks, const std::vector<Thread>& threads) {
  constexpr int looks = 3;
  constexpr timespec pause{0, 5'000'000};  // a lock that is merely busy moves on within a few milliseconds
  struct Suspect {
    int tid;
    proc::SchedStat before;
    bool inside;
  };
  std::vector<Suspect> suspects;
  for (const Thread& thread : threads) {
    if (thread.state != 'D') {
      continue;
    }
    const std::string_view channel = thread.wait_channel ? *thread.wait_channel : std::string_view();
    if (waits_for_map(channel, thread.syscall.value_or(-1))) {
      if (const auto stat = tasks.schedstat(thread.tid)) {
        suspects.push_back({thread.tid, *stat, !is_mmap_lock_channel(channel)});
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
  // Who sleeps elsewhere in a call that takes the lock has it; the others queue.
  const auto keeper = std::ranges::find_if(suspects, [](const Suspect& suspect) { return suspect.inside; });
  return (keeper != suspects.end() ? *keeper : suspects.front()).tid;
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

void set_activity(Thread& thread, const proc::SyscallState& call) {
  // Threads that live in the kernel alone, also workers of a program's io_uring, have no user registers.
  if (call.activity != proc::Activity::running && call.program_counter == 0) {
    return;
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

bool ran_since(const Thread& thread, const std::optional<proc::SchedStat>& now) {
  return !now || thread.run_ns != now->run_ns || thread.slices != now->slices;
}

bool same_call(const Thread& thread, const proc::SyscallState& call) {
  return call.activity == proc::Activity::in_syscall && thread.syscall == call.number &&
         thread.arguments == call.arguments && thread.stack_pointer == call.stack_pointer &&
         thread.program_counter == call.program_counter;
}

// A thread that sleeps in a system call changes nothing of what is read here before it runs again. (Its name
// can be given by another thread: a new one is seen when it has run.)
bool may_be_recorded(const Thread& thread) {
  return !thread.moved && thread.state == 'S' && thread.run_ns.value_or(0) != 0 &&
         thread.syscall.value_or(-1) >= 0;
}

// Nothing if it has ended. Times first: all that is read up to the next unchanged ones is of one moment.
std::optional<Thread> read_thread(const proc::TaskDirectory& tasks, int tid, const Thread* record) {
  const auto times = tasks.schedstat(tid);
  if (record != nullptr && !ran_since(*record, times) && same_call(*record, tasks.syscall(tid))) {
    return *record;
  }
  Thread thread;
  thread.tid = tid;
  if (times) {
    thread.run_ns = times->run_ns;
    thread.slices = times->slices;
  }
  const proc::SyscallState call = tasks.syscall(tid);
  const auto stat = tasks.stat(tid);
  if (!stat) {
    return std::nullopt;
  }
  thread.comm = stat->comm;
  thread.state = stat->state;
  thread.start_ticks = stat->start_ticks;
  thread.cpu = stat->cpu;
  thread.user_ticks = stat->user_ticks;
  thread.system_ticks = stat->system_ticks;
  thread.minor_faults = stat->minor_faults;
  thread.major_faults = stat->major_faults;
  if (!ended(thread.state)) {
    set_activity(thread, call);
  }
  // What a thread sleeps in is told by its call already, most often.
  if (thread.state != 'S' || thread.syscall != SYS_futex) {
    thread.wait_channel = tasks.wait_channel(tid, thread.state);
  }
  if (thread.state == 'D') {
    thread.kernel_stack = tasks.kernel_stack(tid);
  }
  return thread;
}

}  // namespace

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

bool has_run(const Sampled& sampled, const Thread& thread) {
  return ran_since(thread, sampled.tasks->schedstat(thread.tid));
}

Identity identity_of(const proc::Stat& stat) {
  return {stat.start_ticks, stat.code_start, stat.stack_start};
}

Sampled sample(const std::string& proc_root, int pid, std::shared_ptr<TaskRecords> records,
               const std::shared_ptr<proc::DescriptorBudget>& budget) {
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
  std::vector<int> tids;
  if (records && records->identity == sampled.identity) {
    tids = records->directory->list();
  }
  if (tids.empty()) {
    records = std::make_shared<TaskRecords>();
    records->identity = sampled.identity;
    records->directory = proc::TaskDirectory::open(proc_root, pid, budget);
    if (!records->directory) {
      process.error = error_of(errno);
      return sampled;
    }
    tids = records->directory->list();
  }
  records->directory->keep_only(tids);
  sampled.tasks = records->directory.get();
  process.threads.reserve(tids.size());
  Error left_out = Error::gone;
  for (const int tid : tids) {
    const auto record = records->asleep.find(tid);
    errno = ENOENT;
    auto thread =
        read_thread(*sampled.tasks, tid, record == records->asleep.end() ? nullptr : &record->second);
    if (thread) {
      process.threads.push_back(*std::move(thread));
    } else if (error_of(errno) != Error::gone) {  // else it ended since it was listed
      left_out = error_of(errno);
    }
  }
  sampled.records = std::move(records);
  if (leader->kernel_thread()) {
    process.error = Error::kernel_thread;
    return sampled;
  }
  const auto live =
      std::ranges::find_if(process.threads, [](const Thread& thread) { return !ended(thread.state); });
  if (live == process.threads.end()) {
    process.error = process.threads.empty() ? left_out : Error::zombie;
    return sampled;
  }
  sampled.memory_id = ended(leader->state) ? live->tid : pid;
  if (ended(leader->state)) {
    process.notes.emplace_back("the main thread has ended, others go on");
  }
  std::optional<bool>& bits32 = sampled.records->is_32bit;
  if (!bits32) {
    bits32 = is_32bit(proc_root, sampled.memory_id);
  }
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

void sample_again(Sampled& sampled) {
  std::erase_if(sampled.process.threads, [&](Thread& thread) {
    if (!ran_since(thread, sampled.tasks->schedstat(thread.tid))) {
      return false;
    }
    auto now = read_thread(*sampled.tasks, thread.tid, nullptr);
    if (now) {
      thread = *std::move(now);
    }
    return !now;
  });
}

void mark_moved(Sampled& sampled) {
  std::unordered_map<int, Thread> asleep;
  for (Thread& thread : sampled.process.threads) {
    if (thread.running || ran_since(thread, sampled.tasks->schedstat(thread.tid))) {
      thread.moved = true;
    }
    if (may_be_recorded(thread)) {
      Thread& record = asleep.emplace(thread.tid, thread).first->second;
      record.named_values.clear();
    }
  }
  sampled.records->asleep = std::move(asleep);
}

}  // namespace hangtrace::capture
