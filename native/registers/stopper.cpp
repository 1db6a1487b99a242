#include "registers/stopper.hpp"

#include <elf.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <system_error>
#include <thread>

#include "proc/status.hpp"

namespace hangtrace::registers {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto spin_for = std::chrono::microseconds(300);  // most stop within 25
constexpr timespec short_sleep{0, 50'000};
constexpr auto release_within = std::chrono::milliseconds(20);

bool may_be_stopped(const StopRequest& request) {
  const auto tasks = proc::TaskDirectory::open("/proc", request.pid);
  const auto stat = tasks ? tasks->stat(request.tid) : std::nullopt;
  const auto status = proc::read_status("/proc", request.tid);
  return stat && status && status->tracer == 0 && (stat->state == 'S' || stat->state == 'R');
}

// The wait status of its stop; nullopt if it ended or did not stop in time (then errno is ETIMEDOUT).
std::optional<int> await_stop(int tid, Clock::time_point since, Clock::time_point until) {
  for (;;) {
    int status = 0;
    const pid_t got = waitpid(tid, &status, __WALL | WNOHANG);
    if (got == tid) {
      errno = ESRCH;
      return WIFSTOPPED(status) ? std::optional(status) : std::nullopt;
    }
    if (got < 0 && errno != EINTR) {
      return std::nullopt;
    }
    const auto now = Clock::now();
    if (now >= until) {
      errno = ETIMEDOUT;
      return std::nullopt;
    }
    if (now - since < spin_for) {
      sched_yield();
    } else {
      nanosleep(&short_sleep, nullptr);
    }
  }
}

// A signal on its way to the program is passed on when it goes on.
int pending_signal(int status) {
  const bool asked_for = status >> 16 == PTRACE_EVENT_STOP;
  return asked_for ? 0 : WSTOPSIG(status);
}

void look_at(const StopRequest& request, Stopped& result) {
  iovec area{result.words.data(), sizeof result.words};
  if (ptrace(PTRACE_GETREGSET, request.tid, NT_PRSTATUS, &area) != 0 || area.iov_len != sizeof result.words) {
    return;
  }
  if (const auto tasks = proc::TaskDirectory::open("/proc", request.pid)) {
    result.activity = tasks->schedstat(request.tid);
  }
  const memory::Address sp = result.words[pt_regs_rsp];
  result.stack.resize(request.stack_size(sp));
  if (result.stack.empty() || !request.reader->read(sp, result.stack)) {
    result.stack.clear();
  }
  result.outcome = StopOutcome::stopped;
}

void run(const StopRequest& request, Stopped& result) {
  if (!may_be_stopped(request)) {
    result.outcome = StopOutcome::left_alone;
    return;
  }
  const auto begin = Clock::now();
  if (ptrace(PTRACE_SEIZE, request.tid, 0, 0) != 0) {
    result.outcome = errno == ESRCH   ? StopOutcome::ended
                     : errno == EPERM ? StopOutcome::not_permitted
                                      : StopOutcome::failed;
    return;
  }
  if (ptrace(PTRACE_INTERRUPT, request.tid, 0, 0) != 0) {
    result.outcome = StopOutcome::ended;
    return;
  }
  const auto status = await_stop(request.tid, begin, begin + request.deadline);
  if (!status) {
    result.outcome = errno == ETIMEDOUT ? StopOutcome::timed_out : StopOutcome::ended;
    return;  // the end of this thread undoes SEIZE and INTERRUPT
  }
  look_at(request, result);
  ptrace(PTRACE_DETACH, request.tid, 0, pending_signal(*status));
}

// A thread that ended is joined a moment before the kernel lets go of what it traced.
void await_release(const StopRequest& request, int stopper) {
  const auto until = Clock::now() + request.deadline + release_within;
  for (;;) {
    const auto status = proc::read_status("/proc", request.tid);
    if (!status || status->tracer != stopper || Clock::now() >= until) {
      return;
    }
    nanosleep(&short_sleep, nullptr);
  }
}

}  // namespace

std::string describe(StopOutcome outcome) {
  switch (outcome) {
    case StopOutcome::stopped:
      return {};
    case StopOutcome::left_alone:
      return "not stopped: it is in an uninterruptible wait, or stopped or traced already";
    case StopOutcome::not_permitted:
      return "not stopped: not permitted";
    case StopOutcome::ended:
      return "not stopped: it has ended";
    case StopOutcome::timed_out:
      return "it did not stop in time, and was left alone";
    case StopOutcome::failed:
      return "it could not be stopped";
  }
  return {};
}

Stopped stop_thread(const StopRequest& request) {
  Stopped result;
#if defined(__x86_64__)
  const auto begin = Clock::now();
  try {
    int stopper = 0;
    std::thread([&] {
      stopper = gettid();
      run(request, result);
    }).join();
    if (result.outcome == StopOutcome::timed_out) {
      await_release(request, stopper);
    }
  } catch (const std::system_error&) {
    return result;  // no thread could be started
  }
  const bool touched =
      result.outcome != StopOutcome::left_alone && result.outcome != StopOutcome::not_permitted;
  result.still = touched ? Clock::now() - begin : Clock::duration::zero();
#else
  static_cast<void>(request);  // its registers would have another layout
#endif
  return result;
}

}  // namespace hangtrace::registers
