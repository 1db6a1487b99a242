// The primitives of C++. See stage.h.
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <new>
#include <semaphore>
#include <shared_mutex>
#include <thread>

#include "stage.h"

namespace {

using namespace std::chrono_literals;

constexpr auto long_time = 3600s;

template <class T>
T& at(int i) {
  static_assert(sizeof(T) <= OBJECT_SIZE);
  return *std::launder(reinterpret_cast<T*>(&objects[i]));
}

template <class T, auto... arguments>
void make(int i) {
  new (&objects[i]) T(arguments...);
}

template <class T>
void lock(int i) {
  at<T>(i).lock();
}

template <class T>
void want(int i) {
  about_to_want(&at<T>(i));
  at<T>(i).lock();
}

template <class T>
void want_for(int i) {
  about_to_want(&at<T>(i));
  static_cast<void>(at<T>(i).try_lock_for(long_time));
}

template <class T>
void lock_shared(int i) {
  at<T>(i).lock_shared();
}

template <class T>
void want_shared(int i) {
  about_to_want(&at<T>(i));
  at<T>(i).lock_shared();
}

void want_shared_for(int i) {
  about_to_want(&at<std::shared_timed_mutex>(i));
  static_cast<void>(at<std::shared_timed_mutex>(i).try_lock_shared_for(long_time));
}

void want_scoped(int i) {
  about_to_want(&at<std::mutex>(i));
  const std::scoped_lock lock(at<std::mutex>(i));
}

struct Monitor {
  std::mutex mutex;
  std::condition_variable condition;
};

void want_signal(int i) {
  auto& monitor = at<Monitor>(i);
  std::unique_lock lock(monitor.mutex);
  about_to_want(&monitor.condition);
  monitor.condition.wait(lock, [] { return false; });
}

void want_signal_for(int i) {
  auto& monitor = at<Monitor>(i);
  std::unique_lock lock(monitor.mutex);
  about_to_want(&monitor.condition);
  monitor.condition.wait_for(lock, long_time, [] { return false; });
}

void want_any_signal(int i) {
  static std::shared_mutex mutex;
  std::shared_lock lock(mutex);
  about_to_want(&at<std::condition_variable_any>(i));
  at<std::condition_variable_any>(i).wait(lock, [] { return false; });
}

std::promise<int> promise;
std::shared_future<int> result;

void want_promise(int) {
  about_to_want(nullptr);
  promise.get_future().wait();
}

void want_promise_for(int) {
  about_to_want(nullptr);
  promise.get_future().wait_for(long_time);
}

void announced_work() {
  announce("holder");
  sleep_long();
}

void stand_aside(int) {
  sleep_long();
}

void sleep_aside(int) {
  about_to_want(nullptr);
  sleep_long();
}

// Nobody but the thread that std::async starts computes it: the member with the holder's part only waits.
void start_async(int) {
  result = std::async(std::launch::async, [] {
             announced_work();
             return 0;
           }).share();
}

void want_async(int) {
  about_to_want(nullptr);
  result.wait();
}

void want_async_for(int) {
  about_to_want(nullptr);
  result.wait_for(long_time);
}

// Waits with the mutex held for work that wants it.
void wait_for_work_that_wants_it(int i) {
  const auto work = std::async(std::launch::async, [i] {
    announce("member1");
    lock<std::mutex>(i);
  });
  announce("member0");
  work.wait();
}

void want_latch(int i) {
  about_to_want(&at<std::latch>(i));
  at<std::latch>(i).wait();
}

void want_barrier(int i) {
  about_to_want(nullptr);
  at<std::barrier<>>(i).arrive_and_wait();
}

void want_semaphore(int i) {
  about_to_want(&at<std::counting_semaphore<8>>(i));
  at<std::counting_semaphore<8>>(i).acquire();
}

void want_semaphore_for(int i) {
  about_to_want(&at<std::binary_semaphore>(i));
  static_cast<void>(at<std::binary_semaphore>(i).try_acquire_for(long_time));
}

void want_value(int i) {
  about_to_want(&at<std::atomic<int>>(i));
  at<std::atomic<int>>(i).wait(0);
}

// Of another size than a futex: waiters of all such objects sleep on words that the library keeps.
void want_flag(int i) {
  about_to_want(nullptr);
  at<std::atomic_flag>(i).wait(false);
}

void wait_for_ever() {
  pthread_barrier_wait(started);
  announced_work();
}

std::once_flag flags[MEMBERS];

void hold_once(int i) {
  std::call_once(flags[i], wait_for_ever);
}

void want_once(int i) {
  about_to_want(&flags[i]);
  std::call_once(flags[i], wait_for_ever);
}

struct Slow {
  Slow() { wait_for_ever(); }
};

// Inlined in two functions it would be a variable of either.
__attribute__((noinline)) Slow& initialised_once() {
  static Slow slow;
  return slow;
}

void hold_static(int) {
  initialised_once();
}

void want_static(int) {
  about_to_want(nullptr);
  initialised_once();
}

void come_again() {
  pthread_barrier_wait(started);
  be_member(0);
  about_to_want(nullptr);
}

void call_again() {
  come_again();
  std::call_once(flags[0], call_again);
}

void hold_once_in_itself(int) {
  std::call_once(flags[0], call_again);
}

struct Again {
  Again();
};

__attribute__((noinline)) Again& initialised_again() {
  static Again again;
  return again;
}

Again::Again() {
  come_again();
  initialised_again();
}

void hold_static_in_itself(int) {
  initialised_again();
}

std::unique_ptr<std::thread> thread;
std::unique_ptr<std::jthread> jthread;

void start_thread(int) {
  thread = std::make_unique<std::thread>(announced_work);
}
void start_jthread(int) {
  jthread = std::make_unique<std::jthread>(announced_work);
}

void want_thread(int) {
  about_to_want(nullptr);
  thread->join();
}

void want_jthread(int) {
  about_to_want(nullptr);
  jthread.reset();
}

}  // namespace

int main(int argc, char** argv) {
  static const Primitive primitives[] = {
      {"mutex", make<std::mutex>, lock<std::mutex>, want<std::mutex>, nullptr, 0},
      {"scoped_lock", make<std::mutex>, lock<std::mutex>, want_scoped, nullptr, 0},
      {"recursive_mutex", make<std::recursive_mutex>, lock<std::recursive_mutex>, want<std::recursive_mutex>,
       nullptr, 0},
      {"timed_mutex", make<std::timed_mutex>, lock<std::timed_mutex>, want<std::timed_mutex>, nullptr, 0},
      {"timed_mutex for", make<std::timed_mutex>, lock<std::timed_mutex>, want_for<std::timed_mutex>, nullptr,
       0},
      {"recursive_timed_mutex for", make<std::recursive_timed_mutex>, lock<std::recursive_timed_mutex>,
       want_for<std::recursive_timed_mutex>, nullptr, 0},
      {"shared_mutex", make<std::shared_mutex>, lock<std::shared_mutex>, want<std::shared_mutex>, nullptr, 0},
      {"shared_mutex shared", make<std::shared_mutex>, lock<std::shared_mutex>,
       want_shared<std::shared_mutex>, nullptr, 0},
      {"shared_mutex of readers", make<std::shared_mutex>, lock_shared<std::shared_mutex>,
       want<std::shared_mutex>, nullptr, 0},
      {"shared_timed_mutex for", make<std::shared_timed_mutex>, lock<std::shared_timed_mutex>,
       want_for<std::shared_timed_mutex>, nullptr, 0},
      {"shared_timed_mutex shared", make<std::shared_timed_mutex>, lock<std::shared_timed_mutex>,
       want_shared_for, nullptr, 0},
      {"condition_variable", make<Monitor>, nullptr, want_signal, nullptr, 0},
      {"condition_variable for", make<Monitor>, nullptr, want_signal_for, nullptr, 0},
      {"condition_variable_any", make<std::condition_variable_any>, nullptr, want_any_signal, nullptr, 0},
      {"promise", nullptr, nullptr, want_promise, nullptr, 0},
      {"promise for", nullptr, nullptr, want_promise_for, nullptr, 0},
      {"async", nullptr, start_async, want_async, stand_aside, 0},
      {"async for", nullptr, start_async, want_async_for, stand_aside, 0},
      {"async and mutex", make<std::mutex>, lock<std::mutex>, sleep_aside, wait_for_work_that_wants_it, 0},
      {"latch", make<std::latch, 2>, nullptr, want_latch, nullptr, 0},
      {"barrier", make<std::barrier<>, 2>, nullptr, want_barrier, nullptr, 0},
      {"counting_semaphore", make<std::counting_semaphore<8>, 0>, nullptr, want_semaphore, nullptr, 0},
      {"binary_semaphore for", make<std::binary_semaphore, 0>, nullptr, want_semaphore_for, nullptr, 0},
      {"atomic", make<std::atomic<int>>, nullptr, want_value, nullptr, 0},
      {"atomic_flag", make<std::atomic_flag>, nullptr, want_flag, nullptr, 0},
      {"call_once", nullptr, hold_once, want_once, nullptr, 0},
      {"static", nullptr, hold_static, want_static, nullptr, 0},
      {"call_once in itself", nullptr, hold_once_in_itself, nullptr, nullptr, 0},
      {"static in itself", nullptr, hold_static_in_itself, nullptr, nullptr, 0},
      {"thread", nullptr, start_thread, want_thread, stand_aside, 0},
      {"jthread", nullptr, start_jthread, want_jthread, stand_aside, 0},
  };
  return run(primitives, sizeof primitives / sizeof *primitives, argc, argv);
}
