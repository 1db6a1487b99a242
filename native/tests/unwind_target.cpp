// A program for the unwinder's tests: one thread for each pair of function shape and blocking call. Before it
// blocks, a thread notes the return address of each of its functions; these are the truth the unwinder must
// find. When all threads are on their way, the notes are written to stdout, one line a thread:
//   <tid> <shape> <direct or pointer> <call> <syscall number> <return addresses, innermost first, in hex>
// It ends when stdin does. Built several times with different options for frame pointers.
#include <alloca.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <string>
#include <vector>

#define NOTE(thread) (thread)->returns.push_back(__builtin_return_address(0))
#define KEPT asm volatile("" ::: "memory")  // what comes before is no tail call
#ifdef __clang__
#define SHAPE __attribute__((noinline))
#else
#define SHAPE __attribute__((noinline, noclone, noipa))
#endif

namespace {

struct Thread {
  const char* shape = "";
  bool direct = false;
  const char* call_name = "";
  int syscall_number = 0;
  long (*block)(Thread*) = nullptr;
  std::vector<void*> returns;  // outermost first
  pid_t tid = 0;
  std::atomic<bool> noted{false};
  int depth = 0;
};

// What the threads block on; nobody ever gives it.
int empty_pipe[2];
int silent_socket[2];
int listening_socket;
int epoll_descriptor;
pid_t endless_child;
pthread_mutex_t locked_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t cond_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t never_signalled = PTHREAD_COND_INITIALIZER;
pthread_rwlock_t written = PTHREAD_RWLOCK_INITIALIZER;
sem_t empty_semaphore;
pthread_t endless_thread;
char one_byte;

void ready(Thread* thread) {
  thread->noted.store(true, std::memory_order_release);
}

struct Call {
  const char* name;
  int syscall_number;
};

constexpr Call calls[] = {{"read", SYS_read},
                          {"poll", SYS_poll},
                          {"epoll_wait", SYS_epoll_wait},
                          {"recv", SYS_recvfrom},
                          {"accept", SYS_accept},
                          {"nanosleep", SYS_clock_nanosleep},
                          {"pause", SYS_pause},
                          {"wait4", SYS_wait4},
                          {"pthread_mutex_lock", SYS_futex},
                          {"pthread_cond_wait", SYS_futex},
                          {"pthread_rwlock_rdlock", SYS_futex},
                          {"sem_wait", SYS_futex},
                          {"pthread_join", SYS_futex},
                          {"futex", SYS_futex}};
constexpr int call_count = static_cast<int>(sizeof calls / sizeof *calls);

// Inlined into each shape, so that the shape itself calls libc.
inline __attribute__((always_inline)) long block_here(Thread* thread, int call) {
  switch (call) {
    case 0:
      return read(empty_pipe[0], &one_byte, 1);
    case 1: {
      pollfd descriptor{empty_pipe[0], POLLIN, 0};
      return poll(&descriptor, 1, -1);
    }
    case 2: {
      epoll_event event;
      return epoll_wait(epoll_descriptor, &event, 1, -1);
    }
    case 3:
      return recv(silent_socket[0], &one_byte, 1, 0);
    case 4:
      return accept(listening_socket, nullptr, nullptr);
    case 5: {
      const timespec long_time{1'000'000, 0};
      return nanosleep(&long_time, nullptr);
    }
    case 6:
      return pause();
    case 7: {
      int status;
      return wait4(endless_child, &status, 0, nullptr);
    }
    case 8:
      return pthread_mutex_lock(&locked_mutex);
    case 9:
      return pthread_cond_wait(&never_signalled, &cond_mutex);
    case 10:
      return pthread_rwlock_rdlock(&written);
    case 11:
      return sem_wait(&empty_semaphore);
    case 12: {
      void* result;
      return pthread_join(endless_thread, &result);
    }
    default:
      return syscall(SYS_futex, &thread->depth, 0 /* FUTEX_WAIT */, thread->depth, nullptr, nullptr, 0);
  }
}

// The index of the call is in `depth`, a switch picks it at run time.
#define BLOCK(thread)                                        \
  do {                                                       \
    ready(thread);                                           \
    const long result = block_here(thread, (thread)->depth); \
    KEPT;                                                    \
    (thread)->depth = static_cast<int>(result);              \
  } while (false)

SHAPE long plain(Thread* thread) {
  NOTE(thread);
  BLOCK(thread);
  return thread->depth;
}

SHAPE long with_alloca(Thread* thread) {
  NOTE(thread);
  auto* bytes = static_cast<char*>(alloca(static_cast<std::size_t>(thread->tid % 100 + 24)));
  std::memset(bytes, 1, 24);
  asm volatile("" ::"r"(bytes) : "memory");
  BLOCK(thread);
  return bytes[3];
}

SHAPE long aligned(Thread* thread) {
  NOTE(thread);
  alignas(64) char bytes[192];
  std::memset(bytes, 2, sizeof bytes);
  asm volatile("" ::"r"(bytes) : "memory");
  BLOCK(thread);
  return bytes[5];
}

SHAPE long aligned_alloca(Thread* thread) {
  NOTE(thread);
  alignas(64) char bytes[128];
  auto* more = static_cast<char*>(alloca(static_cast<std::size_t>(thread->tid % 100 + 24)));
  std::memset(bytes, 2, sizeof bytes);
  std::memset(more, 3, 24);
  asm volatile("" ::"r"(bytes), "r"(more) : "memory");
  BLOCK(thread);
  return bytes[5] + more[7];
}

SHAPE long large(Thread* thread) {
  NOTE(thread);
  char bytes[48 << 10];  // more than what is copied of a stack at first
  asm volatile("" ::"r"(bytes) : "memory");
  BLOCK(thread);
  return bytes[7];
}

// Leaves return addresses of an earlier, deeper call in the stack below.
SHAPE long leave_traces(Thread* thread, int depth) {
  char bytes[64];
  asm volatile("" ::"r"(bytes) : "memory");
  const long deeper = depth == 0 ? 0 : leave_traces(thread, depth - 1);
  KEPT;
  return deeper + bytes[1];
}

SHAPE long over_traces(Thread* thread) {
  NOTE(thread);
  thread->depth += static_cast<int>(leave_traces(thread, 40) & 0);
  char bytes[2048];
  auto* more = static_cast<char*>(alloca(static_cast<std::size_t>(thread->tid % 100 + 24)));
  asm volatile("" ::"r"(bytes), "r"(more) : "memory");
  BLOCK(thread);
  return bytes[9] + more[1];
}

SHAPE long many_values(Thread* thread) {
  NOTE(thread);
  const long a = thread->tid * 3, b = thread->tid ^ 5, c = a + b, d = a * b, e = c - d, f = d ^ c;
  BLOCK(thread);
  return a + b * c - d + e * f + thread->depth;
}

SHAPE long stack_arguments(long a, long b, long c, long d, long e, long f, Thread* thread, long h) {
  NOTE(thread);
  BLOCK(thread);
  return a + b + c + d + e + f + h;
}

SHAPE long through_arguments(Thread* thread) {
  NOTE(thread);
  const long result = stack_arguments(1, 2, 3, 4, 5, 6, thread, 8);
  KEPT;
  return result;
}

SHAPE long through_pointer(Thread* thread) {
  NOTE(thread);
  long (*volatile function)(Thread*) = with_alloca;
  const long result = function(thread);
  KEPT;
  return result;
}

SHAPE long recursive(Thread* thread, int depth) {
  NOTE(thread);
  alignas(32) char bytes[96];
  asm volatile("" ::"r"(bytes) : "memory");
  long result;
  if (depth == 0) {
    result = aligned(thread);
  } else {
    result = recursive(thread, depth - 1);
  }
  KEPT;
  return result + bytes[1];
}

SHAPE long deep(Thread* thread) {
  NOTE(thread);
  const long result = recursive(thread, 30);
  KEPT;
  return result;
}

thread_local Thread* signalled = nullptr;

// Its return address is the trampoline's; NOTE holds here as everywhere.
SHAPE void on_signal(int) {
  Thread* thread = signalled;
  NOTE(thread);
  BLOCK(thread);
}

SHAPE long in_signal(Thread* thread) {
  NOTE(thread);
  signalled = thread;
  pthread_kill(pthread_self(), SIGUSR1);
  KEPT;
  return thread->depth;
}

SHAPE long on_other_stack(Thread* thread) {
  NOTE(thread);
  constexpr std::size_t size = 64 << 10;
  stack_t stack{};
  stack.ss_sp = std::malloc(size);
  stack.ss_size = size;
  sigaltstack(&stack, nullptr);
  signalled = thread;
  pthread_kill(pthread_self(), SIGUSR2);
  KEPT;
  return thread->depth;
}

SHAPE long by_pointer(Thread* thread) {
  NOTE(thread);
  const long result = thread->block(thread);
  KEPT;
  return result + 1;
}

struct Shape {
  const char* name;
  long (*function)(Thread*);
  bool direct;
};

// clang-format off
#define FOR_ALL_SHAPES(DO) \
  DO(plain) DO(with_alloca) DO(aligned) DO(aligned_alloca) DO(large) DO(over_traces) DO(many_values) \
  DO(through_arguments) DO(through_pointer) DO(deep) DO(in_signal) DO(on_other_stack)
// clang-format on

// One call instruction for each shape.
SHAPE long by_name(Thread* thread) {
  NOTE(thread);
  long result = 0;
#define CALL_IF(function)                           \
  if (std::strcmp(thread->shape, #function) == 0) { \
    result = function(thread);                      \
    KEPT;                                           \
  }
  FOR_ALL_SHAPES(CALL_IF)
  return result + 1;
}

#define BOTH_WAYS(function) {#function, function, true}, {#function, function, false},
constexpr Shape shapes[] = {FOR_ALL_SHAPES(BOTH_WAYS)};

SHAPE void* thread_main(void* argument) {
  auto* thread = static_cast<Thread*>(argument);
  NOTE(thread);
  thread->tid = static_cast<pid_t>(syscall(SYS_gettid));
  const long result = thread->direct ? by_name(thread) : by_pointer(thread);
  KEPT;
  return reinterpret_cast<void*>(result);
}

void* sleep_for_ever(void*) {
  for (;;) pause();
}

void* hold_locks(void* semaphore) {
  pthread_mutex_lock(&locked_mutex);
  pthread_rwlock_wrlock(&written);
  sem_post(static_cast<sem_t*>(semaphore));
  for (;;) pause();
}

void prepare() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR2, &action, nullptr);
  if (pipe(empty_pipe) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, silent_socket) != 0) std::abort();
  listening_socket = socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr any{AF_UNIX, {}};
  if (bind(listening_socket, &any, sizeof(sa_family_t)) != 0 || listen(listening_socket, 1) != 0)
    std::abort();
  epoll_descriptor = epoll_create1(0);
  epoll_event event{};
  epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, empty_pipe[0], &event);
  sem_init(&empty_semaphore, 0, 0);
  endless_child = fork();
  if (endless_child == 0) {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) continue;
    _exit(0);
  }
  pthread_create(&endless_thread, nullptr, sleep_for_ever, nullptr);
  sem_t held;
  sem_init(&held, 0, 0);
  pthread_t holder;
  pthread_create(&holder, nullptr, hold_locks, &held);
  sem_wait(&held);
}

}  // namespace

int main() {
  prepare();
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  std::deque<Thread> threads;
  for (const Shape& shape : shapes) {
    for (int call = 0; call < call_count; ++call) {
      Thread& thread = threads.emplace_back();
      thread.shape = shape.name;
      thread.direct = shape.direct;
      thread.call_name = calls[call].name;
      thread.syscall_number = calls[call].syscall_number;
      thread.block = shape.function;
      thread.depth = call;
      pthread_t handle;
      if (pthread_create(&handle, &attributes, thread_main, &thread) != 0) std::abort();
    }
  }
  for (Thread& thread : threads) {
    while (!thread.noted.load(std::memory_order_acquire)) sched_yield();
    std::printf("%d %s %s %s %d", thread.tid, thread.shape, thread.direct ? "direct" : "pointer",
                thread.call_name, thread.syscall_number);
    for (auto address = thread.returns.rbegin(); address != thread.returns.rend(); ++address) {
      std::printf(" %llx", static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(*address)));
    }
    std::printf("\n");
  }
  std::printf("end\n");
  std::fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  _exit(0);
}
