// Code that was made at run time has neither file nor unwind table. What is shown of a stack that goes
// through it must be right, whatever it leaves out.
#include <doctest/doctest.h>

#ifdef __x86_64__
#include <alloca.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>

#include "tests/elf_builder.hpp"
#include "tests/own_threads.hpp"
#include "unwind/unwinder.hpp"

using namespace hangtrace;
using namespace hangtrace::tests;
using memory::Address;

namespace {

using Block = void (*)(void*);
// Calls block(argument) in the end; writes its return address to the third argument at once.
using Entry = void (*)(Block, void*, void**);

class CodePage {
 public:
  CodePage()
      : bytes_(static_cast<unsigned char*>(
            ::mmap(nullptr, size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(bytes_ != MAP_FAILED);
  }
  ~CodePage() { ::munmap(bytes_, size); }
  CodePage(const CodePage&) = delete;
  CodePage& operator=(const CodePage&) = delete;

  Address here() const { return reinterpret_cast<Address>(bytes_) + used_; }
  Address add(const Bytes& code) {
    const Address at = here();
    REQUIRE(used_ + code.size() <= size);
    std::memcpy(bytes_ + used_, code.data(), code.size());
    used_ += code.size();
    return at;
  }
  Address add_call(Address target) {  // returns the return address
    Bytes code = bytes_of({0xe8});
    append_value(code, static_cast<std::int32_t>(target - (here() + 5)));
    add(code);
    return here();
  }

 private:
  static constexpr std::size_t size = 64 << 10;
  unsigned char* bytes_;
  std::size_t used_ = 0;
};

enum class Frames { none, pointer };

struct Shape {
  std::string name;
  Frames frames;
  int depth;
  unsigned locals;            // bytes of each frame
  bool misaligned = false;    // one frame in between breaks the ABI's alignment
  bool stale = false;         // an old return address lies among the locals
  bool under_alloca = false;  // called by a function whose frame has a variable size
  bool must_be_complete = false;
};

struct Thread {
  Shape shape;
  Entry entry = nullptr;
  std::vector<Address> made;  // return addresses in made code, innermost first
  void* into_caller = nullptr;
  std::vector<Address> outer;  // those that functions noted, innermost first
  std::atomic<pid_t> tid{0};
  pthread_t handle{};
};

int empty_pipe[2];

__attribute__((noinline)) void block(void*) {
  char byte;
  while (::read(empty_pipe[0], &byte, 1) < 0) continue;
  asm volatile("" ::: "memory");
}

__attribute__((noinline)) void through_frame(Thread* thread) {
  thread->outer.push_back(reinterpret_cast<Address>(__builtin_return_address(0)));
  thread->entry(block, nullptr, &thread->into_caller);
  asm volatile("" ::: "memory");
}

__attribute__((noinline)) void through_alloca(Thread* thread) {
  auto* bytes = static_cast<volatile char*>(alloca(static_cast<std::size_t>(100 + thread->shape.depth)));
  bytes[0] = 1;
  thread->outer.push_back(reinterpret_cast<Address>(__builtin_return_address(0)));
  thread->entry(block, nullptr, &thread->into_caller);
  asm volatile("" ::: "memory");
  bytes[1] = bytes[0];
}

void* run(void* argument) {
  auto* thread = static_cast<Thread*>(argument);
  const auto caller = reinterpret_cast<Address>(__builtin_return_address(0));
  if (thread->shape.under_alloca) {
    thread->tid = ::gettid();
    through_alloca(thread);
  } else {
    thread->tid = ::gettid();
    through_frame(thread);
  }
  asm volatile("" ::"r"(caller) : "memory");
  return nullptr;
}

// Innermost first: each function calls the one before it.
void make(CodePage& page, Thread& thread, Address stale) {
  const Shape& shape = thread.shape;
  Address callee = 0;
  for (int level = 0; level < shape.depth; ++level) {
    const Address begin = page.here();
    const bool outermost = level + 1 == shape.depth;
    if (outermost) page.add(bytes_of({0x48, 0x8b, 0x04, 0x24, 0x48, 0x89, 0x02}));  // note the return address
    unsigned size = shape.locals;
    if (shape.frames == Frames::pointer) {
      page.add(bytes_of({0x55, 0x48, 0x89, 0xe5}));
      size += 16;
    } else {
      size += 8;
    }
    // A function that is called 8 bytes off calls the innermost one as the ABI wants it.
    if (shape.misaligned && (level == 0 || level == 1)) size += 8;
    // mov rcx, size / 8; 1: push 0; dec rcx; jnz 1b: what calls before it left there is not what is tested
    Bytes zeros = bytes_of({0x48, 0xc7, 0xc1});
    append_value(zeros, std::uint32_t{size / 8});
    append(zeros, bytes_of({0x6a, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf9}));
    page.add(zeros);
    if (shape.stale) {  // mov rax, stale; mov [rsp + 8], rax; mov [rsp], rax
      Bytes store = bytes_of({0x48, 0xb8});
      append_value(store, stale);
      append(store, bytes_of({0x48, 0x89, 0x44, 0x24, 0x08, 0x48, 0x89, 0x04, 0x24}));
      page.add(store);
    }
    if (level == 0) {
      page.add(bytes_of({0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0xff, 0xd0}));  // rax = rdi; rdi = rsi; call rax
      thread.made.push_back(page.here());
    } else {
      thread.made.push_back(page.add_call(callee));
    }
    Bytes add = bytes_of({0x48, 0x81, 0xc4});
    append_value(add, std::uint32_t{size});
    page.add(add);
    if (shape.frames == Frames::pointer) page.add(bytes_of({0x5d}));
    page.add(bytes_of({0xc3}));
    callee = begin;
    if (outermost) thread.entry = reinterpret_cast<Entry>(begin);
  }
}

}  // namespace

TEST_CASE("stacks through code made at run time are right as far as they go") {
  REQUIRE(::pipe(empty_pipe) == 0);
  CodePage page;
  std::deque<Thread> threads;
  for (const Frames frames : {Frames::none, Frames::pointer}) {
    const std::string kind = frames == Frames::none ? "no frame pointer" : "frame pointer";
    for (const int depth : {1, 2, 3, 6}) {
      for (const unsigned locals : {16u, 512u}) {
        threads.emplace_back().shape = {kind + ", " + std::to_string(depth) + " deep", frames, depth, locals};
        threads.back().shape.must_be_complete = depth == 1;
        threads.emplace_back().shape = {kind + ", old return address", frames, depth, locals};
        threads.back().shape.stale = true;
        threads.emplace_back().shape = {kind + ", under alloca", frames, depth, locals};
        threads.back().shape.under_alloca = true;
        threads.emplace_back().shape = {kind + ", misaligned", frames, std::max(depth, 2), locals};
        threads.back().shape.misaligned = true;
      }
    }
  }
  // What a call left behind: the return address into through_frame of some other thread's call.
  threads.emplace_back().shape = {"first", Frames::none, 1, 16};
  make(page, threads.back(), 0);
  REQUIRE(::pthread_create(&threads.back().handle, nullptr, run, &threads.back()) == 0);
  const tests::ReadingThreads reading;
  reading.await(threads.back().tid);
  const auto stale = reinterpret_cast<Address>(threads.back().into_caller);
  REQUIRE(stale != 0);
  for (std::size_t i = 0; i + 1 < threads.size(); ++i) {
    make(page, threads[i], stale);
    REQUIRE(::pthread_create(&threads[i].handle, nullptr, run, &threads[i]) == 0);
  }

  std::vector<proc::SyscallState> states;
  for (const Thread& thread : threads) states.push_back(reading.await(thread.tid));
  const tests::OwnUnwinder unwinder;
  int complete = 0;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const Thread& thread = threads[i];
    const unwind::Stack stack = unwinder.unwind(states[i]);
    CAPTURE(thread.shape.name);
    CAPTURE(tests::print(stack));
    std::vector<Address> expected = thread.made;
    expected.push_back(reinterpret_cast<Address>(thread.into_caller));
    expected.insert(expected.end(), thread.outer.begin(), thread.outer.end());
    // Inside of them: read() and block().
    const auto first = std::ranges::find(stack.frames, expected[0], &unwind::Frame::pc);
    CHECK(first - stack.frames.begin() <= 3);
    REQUIRE(first != stack.frames.end());
    std::size_t agreeing = 0;
    for (auto frame = first; frame != stack.frames.end() && agreeing < expected.size(); ++frame, ++agreeing)
      CHECK(frame->pc == expected[agreeing]);
    if (stack.complete()) {
      ++complete;
      CHECK(agreeing == expected.size());
    }
    CHECK((stack.complete() || !thread.shape.must_be_complete));
  }
  MESSAGE(complete << " of " << threads.size() << " stacks are complete");

  ::close(empty_pipe[1]);
  for (Thread& thread : threads) ::pthread_join(thread.handle, nullptr);
  ::close(empty_pipe[0]);
}

#else

TEST_CASE("stacks through made code" * doctest::skip() * doctest::description("its code is x86-64's")) {}

#endif
