// A thread in vfork() sleeps until its child has done something else: its return address is in a register.
#include <doctest/doctest.h>

#if defined(__x86_64__) && defined(__GLIBC__)
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "tests/own_threads.hpp"

using namespace hangtrace;

namespace {

int silent_pipe[2];
std::atomic<pid_t> waiting_tid{0};
std::atomic<void*> return_of_launch{nullptr};

// Nothing but system calls in the child, which uses the parent's memory.
__attribute__((noinline)) int launch() {
  return_of_launch = __builtin_return_address(0);
  const pid_t child = ::vfork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    char byte;
    while (::read(silent_pipe[0], &byte, 1) < 0) continue;
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

void* run(void*) {
  waiting_tid = static_cast<pid_t>(::syscall(SYS_gettid));
  const long status = launch();
  return reinterpret_cast<void*>(status);
}

}  // namespace

TEST_CASE("a thread whose child was made by vfork and does not get on has a whole stack") {
  REQUIRE(::pipe2(silent_pipe, O_CLOEXEC) == 0);
  pthread_t thread;
  REQUIRE(::pthread_create(&thread, nullptr, run, nullptr) == 0);
  const auto state = tests::ReadingThreads().await(waiting_tid, SYS_vfork);
  const tests::OwnUnwinder unwinder;
  const unwind::Stack stack = unwinder.unwind_in_call(state);
  CHECK(stack.complete());
  // vfork, launch, run, and two of the C library.
  REQUIRE(stack.frames.size() == 5);
  CHECK(stack.frames[2].pc == reinterpret_cast<memory::Address>(return_of_launch.load()));
  CHECK(std::ranges::all_of(stack.frames, [](const unwind::Frame& frame) {
    return frame.found_by == unwind::FoundBy::leaf || frame.found_by == unwind::FoundBy::cfi;
  }));

  REQUIRE(::write(silent_pipe[1], "x", 1) == 1);
  void* status = nullptr;
  ::pthread_join(thread, &status);
  CHECK(status == nullptr);
  ::close(silent_pipe[0]);
  ::close(silent_pipe[1]);
}

#else

TEST_CASE("a thread in vfork" * doctest::skip() * doctest::description("its code is glibc's of x86-64")) {}

#endif
