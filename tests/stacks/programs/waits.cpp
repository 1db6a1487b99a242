// Threads that wait for ever, each in a way of its own, and one that ticks; loaded by rank.py through ctypes.
// Nothing here ends before the process does.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <future>
#include <latch>
#include <mutex>
#include <semaphore>
#include <shared_mutex>
#include <string>
#include <thread>

namespace {

std::mutex held_mutex;
std::recursive_mutex held_recursive;
std::timed_mutex held_timed;
std::shared_mutex held_shared;
pthread_mutex_t held_pi;
pthread_mutex_t held_robust;
pthread_mutex_t held_checked;
std::mutex first, second;  // a cycle
std::mutex condition_mutex;
std::condition_variable condition;
sem_t empty;
std::binary_semaphore taken{0};
std::barrier<> never_full(1000);
std::atomic<int> unchanged{0};

template <class Function>
void start(const char* name, Function function) {
  std::thread([name, function] {
    pthread_setname_np(pthread_self(), name);
    function();
    asm volatile("");  // no tail call
  }).detach();
}

__attribute__((noinline)) void sleep_for_ever() {
  for (;;) {
    const timespec long_time{1'000'000, 0};
    nanosleep(&long_time, nullptr);
  }
}

void make_mutexes() {
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
  pthread_mutex_init(&held_pi, &kind);
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&held_robust, &kind);
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&held_checked, &kind);
}

void start_owner() {
  static std::latch held(2);
  start("n_owner", [] {
    held_mutex.lock();
    held_recursive.lock();
    held_timed.lock();
    held_shared.lock();
    pthread_mutex_lock(&held_pi);
    pthread_mutex_lock(&held_robust);
    pthread_mutex_lock(&held_checked);
    held.count_down();
    sleep_for_ever();
  });
  held.arrive_and_wait();
}

void start_cycle() {
  static std::barrier<> both(2);
  start("n_cycle_a", [] {
    first.lock();
    both.arrive_and_wait();
    second.lock();
  });
  start("n_cycle_b", [] {
    second.lock();
    both.arrive_and_wait();
    first.lock();
  });
}

void start_lock_waiters() {
  start("n_mutex", [] { held_mutex.lock(); });
  start("n_recursive", [] { held_recursive.lock(); });
  start("n_timed", [] {
    while (!held_timed.try_lock_for(std::chrono::hours(5))) continue;
  });
  start("n_pi", [] { pthread_mutex_lock(&held_pi); });
  start("n_robust", [] { pthread_mutex_lock(&held_robust); });
  start("n_checked", [] { pthread_mutex_lock(&held_checked); });
  start("n_read_lock", [] { held_shared.lock_shared(); });
  start("n_write_lock", [] { held_shared.lock(); });
}

void start_signal_waiters() {
  start("n_condition", [] {
    std::unique_lock lock(condition_mutex);
    condition.wait(lock, [] { return false; });
  });
  start("n_condition_t", [] {
    std::unique_lock lock(condition_mutex);
    while (condition.wait_for(lock, std::chrono::hours(3)) != std::cv_status::timeout) continue;
  });
  start("n_semaphore", [] { sem_wait(&empty); });
  start("n_std_sem", [] { taken.acquire(); });
  start("n_barrier", [] { never_full.arrive_and_wait(); });
  start("n_atomic", [] { unchanged.wait(0); });
  start("n_future", [] {
    auto* promise = new std::promise<int>();
    promise->get_future().get();
  });
  start("n_join", [] {
    std::thread joined([] {
      pthread_setname_np(pthread_self(), "n_joined");
      sleep_for_ever();
    });
    joined.join();
  });
}

void start_call_waiters() {
  start("n_epoll", [] {
    const int set = epoll_create1(0);
    epoll_event event;
    for (;;) epoll_wait(set, &event, 1, -1);
  });
  start("n_recv", [] {
    int ends[2];
    char byte;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0) recv(ends[0], &byte, 1, 0);
  });
  start("n_read", [] {
    int ends[2];
    char byte;
    if (pipe(ends) == 0 && read(ends[0], &byte, 1) < 0) return;
  });
  start("n_poll", [] {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return;
    pollfd wanted{ends[0], POLLIN, 0};
    poll(&wanted, 1, -1);
  });
  start("n_flock", [] {
    const int file = memfd_create("locked", 0);
    flock(file, LOCK_EX);
    const int again = open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDWR);
    flock(again, LOCK_EX);
  });
}

__attribute__((noinline)) void wait_deep(int depth) {
  if (depth > 0) {
    wait_deep(depth - 1);
  } else {
    std::unique_lock lock(condition_mutex);
    condition.wait(lock, [] { return false; });
  }
  asm volatile("");
}

}  // namespace

extern "C" {

void start_waits() {
  make_mutexes();
  sem_init(&empty, 0, 0);
  start_owner();
  start_cycle();
  start_lock_waiters();
  start_signal_waiters();
  start_call_waiters();
}

void start_workers(int count) {
  for (int i = 0; i < count; ++i) start("n_worker", [i] { wait_deep(2 + i % 9); });
}

// What the ticker leaves in the file that is mapped: gaps between two ticks since it was last cleared.
struct Ticks {
  std::atomic<std::uint32_t> clear;  // set to have everything forgotten; the ticker answers with 0
  std::uint32_t longest_us;
  std::uint64_t count;
  std::uint32_t gaps[20'000];  // by microseconds; the last one: that long or longer
};

// Sleeps `period_us` between ticks. 0, or -1 if the file cannot be mapped.
int start_ticker(const char* path, int period_us) {
  const int file = open(path, O_RDWR);
  if (file < 0 || ftruncate(file, sizeof(Ticks)) != 0) return -1;
  void* memory = mmap(nullptr, sizeof(Ticks), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return -1;
  auto* ticks = static_cast<Ticks*>(memory);
  start("n_ticker", [ticks, period_us] {
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    constexpr std::uint32_t last = sizeof ticks->gaps / sizeof *ticks->gaps - 1;
    const timespec period{0, period_us * 1000L};
    auto before = std::chrono::steady_clock::now();
    for (;;) {
      nanosleep(&period, nullptr);
      const auto now = std::chrono::steady_clock::now();
      const auto gap = static_cast<std::uint32_t>(
          std::chrono::duration_cast<std::chrono::microseconds>(now - before).count());
      before = now;
      if (ticks->clear.load(std::memory_order_acquire) != 0) {
        std::fill(std::begin(ticks->gaps), std::end(ticks->gaps), 0);
        ticks->longest_us = 0;
        ticks->count = 0;
        ticks->clear.store(0, std::memory_order_release);
        before = std::chrono::steady_clock::now();
        continue;
      }
      ++ticks->gaps[std::min(gap, last)];
      ++ticks->count;
      ticks->longest_us = std::max(ticks->longest_us, gap);
    }
  });
  return 0;
}

// ctypes calls it without the GIL.
void wait_for_mutex() {
  held_mutex.lock();
  asm volatile("");
}
}
