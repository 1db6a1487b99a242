// Functions of variable size that sleep over the leftovers of earlier calls, whose return addresses lead to
// the thread's start, too. A stack may end there, but no leftover may be taken for a caller.
#include <doctest/doctest.h>

#ifdef __x86_64__
#include <alloca.h>
#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <deque>

#include "tests/own_threads.hpp"
#include "unwind/unwinder.hpp"

using namespace hangtrace;
using memory::Address;

#ifdef __clang__
#define FRAME __attribute__((noinline))
#else
#define FRAME __attribute__((noinline, noclone, noipa))
#endif
#define KEPT asm volatile("" ::: "memory")  // what comes before is no tail call

namespace {

struct Thread;
using Function = void (*)(Thread*);

// Calls go both ways: to leave traces, and to stay.
struct Thread {
  const char* name = nullptr;
  void* (*start)(void*) = nullptr;
  bool must_be_complete = false;
  bool stays = false;
  int depth = 0;
  std::size_t size = 64;            // of the frame of hold()
  std::array<void*, 64> returns{};  // of the functions that have not returned
  std::size_t count = 0;
  std::atomic<pid_t> tid{0};
  pthread_t handle{};
  ucontext_t here{}, coroutine{};
  std::jmp_buf back{};
};

int empty_pipe[2];

class Noted {
 public:
  __attribute__((always_inline)) explicit Noted(Thread* thread) : thread_(thread) {
    thread->returns[thread->count++] = __builtin_return_address(0);
  }
  __attribute__((always_inline)) ~Noted() {
    --thread_->count;
    KEPT;
  }

 private:
  Thread* thread_;
};

FRAME void hold(Thread* thread) {
  const Noted noted(thread);
  auto* bytes = static_cast<char*>(alloca(thread->size));
  asm volatile("" ::"r"(bytes) : "memory");
  if (!thread->stays) return;
  thread->tid = ::gettid();
  char byte;
  while (::read(empty_pipe[0], &byte, 1) < 0) KEPT;
}

void stay(Thread* thread) {
  thread->stays = true;
  thread->size = 4096;
}

FRAME void calls_hold(Thread* thread) {
  const Noted noted(thread);
  hold(thread);
}

FRAME void calls_twice(Thread* thread) {
  const Noted noted(thread);
  calls_hold(thread);
}

FRAME void calls_by_pointer(Thread* thread) {
  const Noted noted(thread);
  const volatile Function function = hold;
  function(thread);
}

// One call instruction for all handlers; the last one stays.
FRAME void call_all(Thread* thread, const Function* handlers, int count) {
  const Noted noted(thread);
  for (int i = 0; i < count; ++i) {
    if (i + 1 == count) stay(thread);
    handlers[i](thread);
  }
}

FRAME void handlers_in_a_loop(Thread* thread) {
  const Noted noted(thread);
  const Function handlers[] = {calls_hold, calls_twice, calls_by_pointer, hold};
  call_all(thread, handlers, 4);
}

FRAME void deeper_handlers_in_a_loop(Thread* thread) {
  const Noted noted(thread);
  const Function handlers[] = {hold, calls_twice, calls_by_pointer};
  call_all(thread, handlers, 3);
}

FRAME void direct_after_direct(Thread* thread) {
  const Noted noted(thread);
  calls_twice(thread);
  calls_by_pointer(thread);
  stay(thread);
  hold(thread);
}

FRAME void direct_after_the_same(Thread* thread) {
  const Noted noted(thread);
  for (int i = 0; i < 2; ++i) {
    calls_twice(thread);
    stay(thread);
  }
}

FRAME void recursive(Thread* thread);

FRAME void calls_recursive(Thread* thread) {
  const Noted noted(thread);
  recursive(thread);
}

// Sleeps itself, over what a call of itself has left.
FRAME void recursive(Thread* thread) {
  const Noted noted(thread);
  if (thread->depth-- > 0) calls_recursive(thread);
  ++thread->depth;
  if (thread->depth < 3) return;
  auto* bytes = static_cast<char*>(alloca(4096));
  asm volatile("" ::"r"(bytes) : "memory");
  thread->tid = ::gettid();
  char byte;
  while (::read(empty_pipe[0], &byte, 1) < 0) KEPT;
}

FRAME void over_recursion(Thread* thread) {
  const Noted noted(thread);
  thread->depth = 3;
  recursive(thread);
}

FRAME void nested(Thread* thread) {
  const Noted noted(thread);
  auto* bytes = static_cast<char*>(alloca(thread->size));
  asm volatile("" ::"r"(bytes) : "memory");
  if (--thread->depth > 0) {
    nested(thread);
    return;
  }
  thread->tid = ::gettid();
  char byte;
  while (::read(empty_pipe[0], &byte, 1) < 0) KEPT;
}

FRAME void in_recursion(Thread* thread) {
  const Noted noted(thread);
  thread->depth = 5;
  nested(thread);
}

FRAME void jumps(Thread* thread) {
  calls_twice(thread);
  std::longjmp(thread->back, 1);
}

FRAME void after_a_long_jump(Thread* thread) {
  const Noted noted(thread);
  const std::size_t count = thread->count;
  if (setjmp(thread->back) == 0) jumps(thread);
  thread->count = count;
  stay(thread);
  hold(thread);
}

// Leaves by a jump to where the pointer leads: its caller calls this, and never the other.
FRAME void jumps_on(Thread* thread, Function function) {
  function(thread);
}

FRAME void through_a_tail_call(Thread* thread) {
  const Noted noted(thread);
  calls_hold(thread);
  stay(thread);
  jumps_on(thread, hold);
  KEPT;
}

thread_local Thread* signalled = nullptr;

FRAME void handle_signal(int) {
  Thread* thread = signalled;
  thread->count = 0;
  const Noted noted(thread);
  hold(thread);
  KEPT;
}

FRAME void in_a_signal(Thread* thread) {
  signalled = thread;
  ::pthread_kill(::pthread_self(), SIGUSR1);
  stay(thread);
  ::pthread_kill(::pthread_self(), SIGUSR1);
  KEPT;
}

// The thread's own frames are none of the coroutine's.
FRAME void in_coroutine(unsigned low, unsigned high) {
  auto* thread = reinterpret_cast<Thread*>(std::uint64_t{high} << 32 | low);
  calls_twice(thread);
  ::swapcontext(&thread->coroutine, &thread->here);
  thread->count = 0;
  const Noted noted(thread);
  stay(thread);
  hold(thread);
  KEPT;
}

FRAME void in_a_coroutine(Thread* thread) {
  static std::array<char, 64 << 10> stack;
  ::getcontext(&thread->coroutine);
  thread->coroutine.uc_stack.ss_sp = stack.data();
  thread->coroutine.uc_stack.ss_size = stack.size();
  thread->coroutine.uc_link = &thread->here;
  const auto address = reinterpret_cast<std::uint64_t>(thread);
  ::makecontext(&thread->coroutine, reinterpret_cast<void (*)()>(in_coroutine), 2,
                static_cast<unsigned>(address), static_cast<unsigned>(address >> 32));
  ::swapcontext(&thread->here, &thread->coroutine);
  ::swapcontext(&thread->here, &thread->coroutine);
  KEPT;
}

FRAME void over_nothing(Thread* thread) {
  const Noted noted(thread);
  stay(thread);
  hold(thread);
}

FRAME void over_nothing_by_pointer(Thread* thread) {
  const Noted noted(thread);
  stay(thread);
  const volatile Function function = hold;
  function(thread);
}

// Not called by a pointer: a call by one could have led to hold().
template <Function run>
FRAME void* start(void* argument) {
  auto* thread = static_cast<Thread*>(argument);
  const Noted noted(thread);
  run(thread);
  KEPT;
  return nullptr;
}

}  // namespace

TEST_CASE("leftovers of earlier calls are not taken for callers of functions of variable size") {
  REQUIRE(::pipe(empty_pipe) == 0);
  struct sigaction action {};
  action.sa_handler = handle_signal;
  REQUIRE(::sigaction(SIGUSR1, &action, nullptr) == 0);
  std::deque<Thread> threads;
  const auto add = [&](const char* name, void* (*starts)(void*), bool must_be_complete = false) {
    Thread& thread = threads.emplace_back();
    thread.name = name;
    thread.start = starts;
    thread.must_be_complete = must_be_complete;
  };
#define ADD(name) add(#name, start<name>)
  ADD(handlers_in_a_loop);
  ADD(deeper_handlers_in_a_loop);
  ADD(direct_after_direct);
  ADD(direct_after_the_same);
  ADD(over_recursion);
  ADD(in_recursion);
  ADD(after_a_long_jump);
  ADD(through_a_tail_call);
  ADD(in_a_signal);
  ADD(in_a_coroutine);
  add("over_nothing", start<over_nothing>, true);
  add("over_nothing_by_pointer", start<over_nothing_by_pointer>, true);

  const tests::ReadingThreads reading;
  for (Thread& thread : threads)
    REQUIRE(::pthread_create(&thread.handle, nullptr, thread.start, &thread) == 0);
  std::vector<proc::SyscallState> states;
  for (const Thread& thread : threads) states.push_back(reading.await(thread.tid));

  const tests::OwnUnwinder unwinder;
  int complete = 0;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const Thread& thread = threads[i];
    const unwind::Stack stack = unwinder.unwind(states[i]);
    CAPTURE(thread.name);
    CAPTURE(tests::print(stack));
    // read, and the function that called it; then all that were noted.
    const std::size_t known = std::min(stack.frames.size(), thread.count + 2);
    for (std::size_t frame = 2; frame < known; ++frame) {
      const auto noted = reinterpret_cast<Address>(thread.returns[thread.count + 1 - frame]);
      CHECK(stack.frames[frame].pc == noted);
    }
    if (stack.complete()) ++complete;
    CHECK((stack.complete() || !thread.must_be_complete));
  }
  MESSAGE(complete << " of " << threads.size() << " stacks are complete");

  ::close(empty_pipe[1]);
  for (Thread& thread : threads) ::pthread_join(thread.handle, nullptr);
  ::close(empty_pipe[0]);
}

#else

TEST_CASE("leftovers of earlier calls" * doctest::skip() * doctest::description("needs x86-64")) {}

#endif
