// What a frame has not written yet holds return addresses of earlier calls. They lead to the thread's start,
// too, so in code without unwind table they must not be taken for its caller.
#include <doctest/doctest.h>

#ifdef __x86_64__
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>

#include "tests/own_threads.hpp"
#include "unwind/unwinder.hpp"

using namespace hangtrace;
using memory::Address;

// Each notes its return address in *rsi and calls rdi, or reads from the file rdi itself (leaves).
#define WITHOUT_TABLE(name, before, after)                                                                \
  extern "C" void name(std::uint64_t, void**);                                                            \
  extern "C" const char name##_end[];                                                                     \
  __asm__(".text\n.type " #name ",@function\n" #name ":\nmov (%rsp),%rax\nmov %rax,(%rsi)\n" before after \
          "\n" #name                                                                                      \
          "_end:\nnop\n"                                                                                  \
          ".size " #name ",.-" #name "\n")
#define CALL "call *%rdi\n"
#define READ "lea -16(%rsp),%rsi\nmov $1,%edx\nxor %eax,%eax\nsyscall\n"
#define BRANCH "test %eax,%eax\nje 1f\nnop\n1: "

WITHOUT_TABLE(stale_plain, "sub $0x1008,%rsp\n" CALL, "add $0x1008,%rsp\nret");
WITHOUT_TABLE(stale_branch, "sub $0x1008,%rsp\n" CALL, BRANCH "add $0x1008,%rsp\nret");
WITHOUT_TABLE(stale_endless, "sub $0x1008,%rsp\n1: " CALL, "xor %eax,%eax\njne 1b\nadd $0x1008,%rsp\nret");
WITHOUT_TABLE(stale_pushes, "push %rbx\npush %r12\nsub $0x1008,%rsp\n" CALL,
              "jmp 1f\n1: add $0x1008,%rsp\npop %r12\npop %rbx\nret");
WITHOUT_TABLE(stale_pointer, "push %rbp\nmov %rsp,%rbp\nsub $0x1000,%rsp\n" CALL, BRANCH "leave\nret");
WITHOUT_TABLE(stale_aligned, "push %rbp\nmov %rsp,%rbp\nand $-64,%rsp\nsub $0x1000,%rsp\n" CALL,
              "leave\nret");
WITHOUT_TABLE(stale_variable, "push %rbp\nmov %rsp,%rbp\nmov $0x1000,%eax\nsub %rax,%rsp\n" CALL,
              "leave\nret");
WITHOUT_TABLE(stale_growing, "push %rbp\nmov %rsp,%rbp\n1: sub $0x1000,%rsp\n" CALL,
              "xor %eax,%eax\njne 1b\nleave\nret");
WITHOUT_TABLE(stale_skipping, "test %rdi,%rdi\njne 1f\npush %rbx\npush %rbx\n1: sub $0x1008,%rsp\n" CALL,
              BRANCH "add $0x1008,%rsp\nret");
WITHOUT_TABLE(stale_leaf, "sub $0x1008,%rsp\n" READ, BRANCH "add $0x1008,%rsp\nret");
WITHOUT_TABLE(stale_pointer_leaf, "push %rbp\nmov %rsp,%rbp\nsub $0x1000,%rsp\n" READ, BRANCH "leave\nret");

namespace {

using Function = void (*)(std::uint64_t, void**);

struct Thread {
  const char* name = nullptr;
  Function function = nullptr;
  void (*enter)(Thread*) = nullptr;
  bool must_be_complete = false;
  std::uint64_t argument = 0;
  void* into_enter = nullptr;
  void* into_run = nullptr;
  std::atomic<pid_t> tid{0};
  pthread_t handle{};
};

int empty_pipe[2];

__attribute__((noinline)) void block() {
  char byte;
  while (::read(empty_pipe[0], &byte, 1) < 0) continue;
  asm volatile("" ::: "memory");
}

__attribute__((noinline)) void enter_by_pointer(Thread* thread) {
  thread->into_run = __builtin_return_address(0);
  thread->tid = ::gettid();
  thread->function(thread->argument, &thread->into_enter);
  asm volatile("" ::: "memory");
}

template <Function function>
__attribute__((noinline)) void enter(Thread* thread) {
  thread->into_run = __builtin_return_address(0);
  thread->tid = ::gettid();
  function(thread->argument, &thread->into_enter);
  asm volatile("" ::: "memory");
}

int leave_traces(int depth);
int (*volatile by_pointer)(int) = leave_traces;

__attribute__((noinline)) int leave_trace(int depth) {
  volatile char bytes[40] = {};
  const int sum = by_pointer(depth - 1);
  asm volatile("" ::: "memory");
  return sum + bytes[0];
}

// Leaves return addresses of calls through a pointer by a function that is called directly, down to where the
// frames will be that do not write all of theirs.
__attribute__((noinline)) int leave_traces(int depth) {
  if (depth == 0) return 0;
  volatile char bytes[40] = {};
  const int sum = leave_trace(depth);
  asm volatile("" ::: "memory");
  return sum + bytes[0];
}

void* run(void* argument) {
  auto* thread = static_cast<Thread*>(argument);
  leave_traces(28);
  asm volatile("" ::: "memory");
  thread->enter(thread);
  asm volatile("" ::: "memory");
  return nullptr;
}

}  // namespace

TEST_CASE("return addresses that earlier calls left are not taken for callers of code without table") {
  REQUIRE(::pipe(empty_pipe) == 0);
  constexpr std::size_t page_size = 64 << 10;
  void* const page =
      ::mmap(nullptr, page_size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  std::deque<Thread> threads;
  std::size_t used = 0;
  const auto start = [&](const char* name, Function function, void (*enters)(Thread*), bool must_be_complete,
                         std::uint64_t argument) {
    Thread& thread = threads.emplace_back();
    thread.name = name;
    thread.function = function;
    thread.enter = enters;
    thread.must_be_complete = must_be_complete;
    thread.argument = argument;
  };
  const auto add = [&](const char* name, Function function, const char* end, void (*direct)(Thread*),
                       bool direct_is_complete, bool is_leaf, bool always_complete) {
    const auto argument =
        is_leaf ? static_cast<std::uint64_t>(empty_pipe[0]) : reinterpret_cast<std::uint64_t>(&block);
    const auto size = static_cast<std::size_t>(end - reinterpret_cast<const char*>(function));
    REQUIRE(used + size <= page_size);
    auto* const copy = static_cast<char*>(page) + used;
    std::memcpy(copy, reinterpret_cast<const void*>(function), size);
    used += (size + 63) / 64 * 64;
    start(name, function, direct, direct_is_complete, argument);
    start(name, function, enter_by_pointer, always_complete, argument);
    start(name, reinterpret_cast<Function>(copy), enter_by_pointer, always_complete, argument);
  };
#define ADD(name, direct_is_complete, is_leaf, always_complete) \
  add(#name, name, name##_end, enter<name>, direct_is_complete, is_leaf, always_complete)
  ADD(stale_plain, true, false, true);
  ADD(stale_branch, true, false, false);
  ADD(stale_endless, true, false, false);
  ADD(stale_pushes, true, false, false);
  ADD(stale_pointer, true, false, false);
  ADD(stale_aligned, false, false, false);
  ADD(stale_variable, false, false, false);
  ADD(stale_growing, false, false, false);
  ADD(stale_skipping, false, false, false);
  ADD(stale_leaf, true, true, false);
  ADD(stale_pointer_leaf, true, true, false);

  const tests::ReadingThreads reading;
  for (Thread& thread : threads) REQUIRE(::pthread_create(&thread.handle, nullptr, run, &thread) == 0);
  std::vector<proc::SyscallState> states;
  for (const Thread& thread : threads) states.push_back(reading.await(thread.tid));

  const tests::OwnUnwinder unwinder;
  int complete = 0;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const Thread& thread = threads[i];
    const unwind::Stack stack = unwinder.unwind(states[i]);
    CAPTURE(thread.name);
    CAPTURE(i % 3);  // called directly, through a pointer, copied
    CAPTURE(tests::print(stack));
    const auto into_enter = reinterpret_cast<Address>(thread.into_enter);
    const auto into_run = reinterpret_cast<Address>(thread.into_run);
    const auto caller = std::ranges::find(stack.frames, into_enter, &unwind::Frame::pc);
    if (caller == stack.frames.end()) {
      // It ends in the code without table, or before: read, block, the function.
      CHECK(stack.frames.size() <= 3);
      CHECK_FALSE(stack.complete());
    } else {
      CHECK(caller - stack.frames.begin() <= 3);
      const auto next = caller + 1;
      CHECK((next == stack.frames.end() || next->pc == into_run));
    }
    if (stack.complete()) ++complete;
    CHECK((stack.complete() || !thread.must_be_complete));
  }
  MESSAGE(complete << " of " << threads.size() << " stacks are complete");

  ::close(empty_pipe[1]);
  for (Thread& thread : threads) ::pthread_join(thread.handle, nullptr);
  ::close(empty_pipe[0]);
  ::munmap(page, page_size);
}

#else

TEST_CASE("stale return addresses" * doctest::skip() * doctest::description("its code is x86-64's")) {}

#endif
