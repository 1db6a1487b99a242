// Stops real threads: they must go on, whatever becomes of who stopped them.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>

#include "memory/file_reader.hpp"
#include "proc/status.hpp"
#include "proc/threads.hpp"
#include "registers/stopper.hpp"

#if defined(__x86_64__)

namespace {

using namespace hangtrace;
using namespace hangtrace::registers;
using Clock = std::chrono::steady_clock;

constexpr auto patience = std::chrono::seconds(30);

// A child process that is killed at the end.
class Child {
 public:
  explicit Child(const std::function<void()>& work) {
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() == parent) work();
      ::_exit(0);
    }
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  int pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

// Counts as long as it runs; seen by all.
class Counter {
 public:
  Counter()
      : value_(static_cast<std::atomic<unsigned long>*>(
            ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Counter() { ::munmap(value_, 4096); }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;
  [[noreturn]] void count() const {
    for (;;) value_->fetch_add(1, std::memory_order_relaxed);
  }
  void await_growth() const {
    const unsigned long before = value_->load();
    const auto deadline = Clock::now() + patience;
    while (value_->load() == before) {
      REQUIRE(Clock::now() < deadline);
      ::poll(nullptr, 0, 1);
    }
  }

 private:
  std::atomic<unsigned long>* value_;
};

char state_of(int pid) {
  const auto stat = proc::read_process_stat("/proc", pid);
  return stat ? stat->state : '?';
}

void await_state(int pid, char state) {
  const auto deadline = Clock::now() + patience;
  while (state_of(pid) != state) {
    REQUIRE(Clock::now() < deadline);
    ::poll(nullptr, 0, 1);
  }
}

Stopped stop(int pid) {
  const memory::FileReader reader("/proc", pid);
  return stop_thread(
      {.pid = pid, .tid = pid, .reader = &reader, .stack_size = [](memory::Address) { return 512; }});
}

int tracer_of(int pid) {
  const auto status = proc::read_status("/proc", pid);
  return status ? status->tracer : 0;
}

}  // namespace

TEST_CASE("a running thread shows its registers and stack, and goes on") {
  const Counter counter;
  const Child child([&] { counter.count(); });
  counter.await_growth();
  Stopped stopped;
  const auto deadline = Clock::now() + patience;
  do {  // it does not stop before it gets on a CPU, which may take longer than we wait
    stopped = stop(child.pid());
    REQUIRE(Clock::now() < deadline);
  } while (stopped.outcome == StopOutcome::timed_out);
  if (stopped.outcome == StopOutcome::not_permitted) {
    MESSAGE("skipped: ptrace is not permitted");
    return;
  }
  REQUIRE(stopped.outcome == StopOutcome::stopped);
  unwind::Registers registers;
  CHECK(from_pt_regs(stopped.words, registers));
  CHECK(stopped.stack.size() == 512);
  CHECK(stopped.still.count() > 0);
  CHECK(tracer_of(child.pid()) == 0);
  counter.await_growth();
}

TEST_CASE("a sleeping thread has run once for the stop, and sleeps on in its call") {
  const Child child([] {
    int silent[2];
    char byte = 0;
    if (::pipe(silent) == 0) static_cast<void>(::read(silent[0], &byte, 1));
  });
  await_state(child.pid(), 'S');
  const auto tasks = proc::TaskDirectory::open("/proc", child.pid());
  REQUIRE(tasks);
  const auto before = tasks->schedstat(child.pid());
  const auto call = tasks->syscall(child.pid());
  const Stopped stopped = stop(child.pid());
  if (stopped.outcome == StopOutcome::timed_out || stopped.outcome == StopOutcome::not_permitted) {
    MESSAGE("skipped: " << describe(stopped.outcome));
    return;
  }
  REQUIRE(stopped.outcome == StopOutcome::stopped);
  CHECK(stopped.words[pt_regs_rip] == call.program_counter);
  CHECK(stopped.words[pt_regs_rsp] == call.stack_pointer);
  REQUIRE(before);
  REQUIRE(stopped.activity);
  CHECK(stopped.activity->slices == before->slices + 1);
  await_state(child.pid(), 'S');
  CHECK(tasks->syscall(child.pid()).number == call.number);
}

TEST_CASE("a thread in an uninterruptible wait is not touched") {
  const Child child([] {
    int silent[2];
    char byte = 0;
    if (::pipe(silent) != 0) return;
    if (::vfork() == 0) {  // NOLINT: the parent waits in state D until this ends
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      static_cast<void>(::read(silent[0], &byte, 1));
      ::_exit(0);
    }
  });
  await_state(child.pid(), 'D');
  CHECK(stop(child.pid()).outcome == StopOutcome::left_alone);
  CHECK(state_of(child.pid()) == 'D');
  CHECK(tracer_of(child.pid()) == 0);
}

TEST_CASE("a stopped thread, a traced one and one that has ended are not touched") {
  const Child sleeping([] { ::pause(); });
  await_state(sleeping.pid(), 'S');
  ::kill(sleeping.pid(), SIGSTOP);
  await_state(sleeping.pid(), 'T');
  CHECK(stop(sleeping.pid()).outcome == StopOutcome::left_alone);
  CHECK(state_of(sleeping.pid()) == 'T');

  const Child traced([] { ::pause(); });
  await_state(traced.pid(), 'S');
  REQUIRE(::ptrace(PTRACE_SEIZE, traced.pid(), 0, 0) == 0);
  CHECK(stop(traced.pid()).outcome == StopOutcome::left_alone);
  CHECK(tracer_of(traced.pid()) == ::getpid());

  const Child ended([] {});
  await_state(ended.pid(), 'Z');
  const Stopped stopped = stop(ended.pid());
  CHECK(stopped.outcome == StopOutcome::left_alone);
  CHECK(stopped.still.count() == 0);
}

TEST_CASE("whoever is killed while it stops a thread lets it go on") {
  const Counter counter;
  const Child target([&] { counter.count(); });
  counter.await_growth();
  for (int round = 0; round < 25; ++round) {
    {
      const Child tool([&] {
        for (;;) stop(target.pid());
      });
      // Any moment will do: each round another one.
      ::poll(nullptr, 0, 1 + round % 5);
    }
    counter.await_growth();
    CHECK(tracer_of(target.pid()) == 0);
  }
}

TEST_CASE("a stop that does not come in time is forgotten") {
  const Counter counter;
  const Child child([&] { counter.count(); });
  counter.await_growth();
  const memory::FileReader reader("/proc", child.pid());
  for (int round = 0; round < 50; ++round) {
    const Stopped stopped = stop_thread({.pid = child.pid(),
                                         .tid = child.pid(),
                                         .reader = &reader,
                                         .stack_size = [](memory::Address) { return 0; },
                                         .deadline = std::chrono::microseconds(0)});
    const bool known = stopped.outcome == StopOutcome::timed_out || stopped.outcome == StopOutcome::stopped ||
                       stopped.outcome == StopOutcome::not_permitted;
    CHECK(known);
    CHECK(tracer_of(child.pid()) == 0);
  }
  counter.await_growth();
}

#endif
