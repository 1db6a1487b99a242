#include "capture/workers.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "memory/heap.hpp"
#include "proc/files.hpp"

namespace hangtrace::capture {

namespace {

class Shared {
 public:
  Shared(std::size_t count, const std::function<void(std::size_t)>& begin,
         const std::function<void(std::size_t)>& work)
      : count_(count), begin_(begin), work_(work) {}

  void work_off() noexcept {
    try {
      for (std::size_t i = 0; take(i);) {
        work_(i);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!thrown_) {
        thrown_ = std::current_exception();
      }
      next_ = count_;
    }
  }

  void rethrow() const {
    if (thrown_) {
      std::rethrow_exception(thrown_);
    }
  }

 private:
  bool take(std::size_t& i) {
    const std::lock_guard lock(mutex_);
    if (next_ >= count_) {
      return false;
    }
    i = next_++;
    begin_(i);
    return true;
  }

  const std::size_t count_;
  const std::function<void(std::size_t)>& begin_;
  const std::function<void(std::size_t)>& work_;
  std::mutex mutex_;
  std::size_t next_ = 0;
  std::exception_ptr thrown_;
};

// Threads that are started meanwhile have all signals blocked: these are the caller's to handle.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// struct sched_attr of uapi/linux/sched/types.h; glibc declares it only from 2.41 on.
struct SchedulerAttributes {
  std::uint32_t size = sizeof(SchedulerAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;  // with the usual policies the slice
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};
static_assert(sizeof(SchedulerAttributes) == 48);

// Of two threads that want a CPU the one with the shorter slice has it first. This is the longest there is.
constexpr std::uint64_t longest_slice_ns = 100'000'000;

std::optional<SchedulerAttributes> attributes_of(pid_t tid) {
  SchedulerAttributes attributes;
  const bool known = syscall(SYS_sched_getattr, tid, &attributes, sizeof attributes, 0) == 0;
  return known ? std::optional(attributes) : std::nullopt;
}

// Where it is refused the thread goes on as it was.
bool set_attributes(pid_t tid, SchedulerAttributes attributes) {
  return syscall(SYS_sched_setattr, tid, &attributes, 0) == 0;
}

// The slice of the calling thread in nanoseconds before, 0 where nothing was changed.
std::uint64_t set_slice(std::uint64_t slice_ns) {
  auto attributes = attributes_of(0);
  if (!attributes || (attributes->policy != SCHED_OTHER && attributes->policy != SCHED_BATCH)) {
    return 0;
  }
  const std::uint64_t before = std::exchange(attributes->runtime_ns, slice_ns);
  return set_attributes(0, *attributes) ? before : 0;
}

// Who is looked at, or anybody else, is to notice nothing of the thread.
void run_where_nobody_would() {
  if (auto attributes = attributes_of(0)) {
    attributes->policy = SCHED_IDLE;
    attributes->runtime_ns = 0;
    set_attributes(0, *attributes);
  }
}

// It gets its turn, and gives way to whoever wakes up.
void run_in_turn(pid_t tid) {
  auto attributes = attributes_of(tid);
  if (attributes && attributes->policy == SCHED_IDLE) {
    attributes->policy = SCHED_OTHER;
    attributes->runtime_ns = longest_slice_ns;
    set_attributes(tid, *attributes);
  }
}

// A thread of ours, and its id once it has begun.
struct Worker {
  std::atomic<pid_t> tid{0};
  std::jthread thread;
};

void start_threads(Shared& shared, std::size_t count, std::deque<Worker>& workers) {
  const BlockedSignals blocked;
  try {
    while (workers.size() < count) {
      Worker& worker = workers.emplace_back();
      worker.thread = std::jthread([&shared, &worker] {
        worker.tid = static_cast<pid_t>(syscall(SYS_gettid));
        run_where_nobody_would();
        memory::prepare_heap();
        shared.work_off();
      });
    }
  } catch (const std::system_error&) {
    return;  // no more threads are allowed: those there are do all of it
  }
}

}  // namespace

std::size_t free_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    return 1;  // more CPUs than the set has room for, too
  }
  // "0.20 0.18 0.12 1/80 11206": how many threads are runnable now, this one among them.
  const std::string load = proc::read_file("/proc/loadavg").value_or("");
  unsigned runnable = 0;
  if (std::sscanf(load.c_str(), "%*s %*s %*s %u/", &runnable) != 1) {
    return 1;
  }
  const long others = std::max<long>(static_cast<long>(runnable) - 1, 0);
  const long left = sysconf(_SC_NPROCESSORS_ONLN) - others;
  return static_cast<std::size_t>(std::clamp<long>(left, 1, std::max(CPU_COUNT(&set), 1)));
}

GivesWay::GivesWay() : slice_before_(set_slice(longest_slice_ns)) {}

GivesWay::~GivesWay() {
  if (slice_before_ != 0) {
    set_slice(slice_before_);
  }
}

void expect_descriptors(std::size_t count) {
  const proc::Descriptor any(open("/", O_PATH | O_CLOEXEC));
  rlimit limit{};
  if (!any || getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return;
  }
  const rlim_t highest = std::min<rlim_t>(any.get() + count, std::min<rlim_t>(limit.rlim_cur, 1 << 20) - 1);
  const proc::Descriptor last(fcntl(any.get(), F_DUPFD_CLOEXEC, static_cast<int>(highest)));
}

void share_out(std::size_t count, std::size_t workers, const std::function<void(std::size_t)>& begin,
               const std::function<void(std::size_t)>& work) {
  Shared shared(count, begin, work);
  {
    std::deque<Worker> others;
    if (const std::size_t most = std::min(count, workers); most > 1) {
      start_threads(shared, most - 1, others);
    }
    shared.work_off();
    for (const Worker& worker : others) {
      if (worker.tid != 0) {
        run_in_turn(worker.tid);  // what it has in hand is waited for
      }
    }
  }  // joins
  shared.rethrow();
}

}  // namespace hangtrace::capture
