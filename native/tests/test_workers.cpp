#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "capture/workers.hpp"
#include "memory/heap.hpp"

using namespace hangtrace::capture;

namespace {

const auto nothing = [](std::size_t) {};

std::size_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

const std::size_t threads_at_first = threads_of_this_process();  // a sanitizer has one of its own

// A thread that was joined may be listed for a moment more.
bool all_threads_have_ended() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (;;) {
    if (threads_of_this_process() == threads_at_first) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
    ::poll(nullptr, 0, 1);
  }
}

}  // namespace

TEST_CASE("each piece of work is done once, and begun in order") {
  for (const std::size_t workers : {0, 1, 2, 4, 100}) {
    CAPTURE(workers);
    constexpr std::size_t count = 50;
    std::vector<std::size_t> begun;
    std::vector<std::atomic<int>> done(count);
    std::vector<std::thread::id> begun_by(count);
    std::atomic<bool> same_thread = true;
    share_out(
        count, workers,
        [&](std::size_t i) {
          begun.push_back(i);
          begun_by[i] = std::this_thread::get_id();
        },
        [&](std::size_t i) {
          ++done[i];
          same_thread = same_thread && begun_by[i] == std::this_thread::get_id();
        });
    REQUIRE(begun.size() == count);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(begun[i] == i);
      CHECK(done[i] == 1);
    }
    CHECK(same_thread);
    CHECK(all_threads_have_ended());
  }
  share_out(0, 4, nothing, [](std::size_t) { FAIL("nothing is to be done"); });
}

TEST_CASE("so many work at once, and a single one in the caller's thread") {
  std::mutex mutex;
  std::condition_variable all_there;
  std::set<std::thread::id> working;
  share_out(3, 3, nothing, [&](std::size_t) {
    std::unique_lock lock(mutex);
    working.insert(std::this_thread::get_id());
    all_there.notify_all();
    CHECK(all_there.wait_for(lock, std::chrono::seconds(60), [&] { return working.size() == 3; }));
  });
  CHECK(working.contains(std::this_thread::get_id()));
  for (const auto& [count, workers] : {std::pair<std::size_t, std::size_t>{1, 8}, {5, 1}}) {
    share_out(count, workers, nothing, [](std::size_t) { CHECK(all_threads_have_ended()); });
  }
}

TEST_CASE("what is thrown passes through, after all threads have ended") {
  for (const bool in_begin : {true, false}) {
    std::atomic<int> done = 0;
    const auto refuse = [&](std::size_t i) {
      if (i == 3) {
        throw std::runtime_error("no more");
      }
      ++done;
    };
    const std::function<void(std::size_t)> none = nothing;
    CHECK_THROWS_WITH(share_out(100, 2, in_begin ? refuse : none, in_begin ? none : refuse), "no more");
    CHECK(all_threads_have_ended());
    CHECK(done < 99);
  }
}

TEST_CASE("signals are left to the caller's thread") {
  share_out(8, 3, nothing, [caller = std::this_thread::get_id()](std::size_t) {
    sigset_t blocked;
    REQUIRE(pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0);
    CHECK((sigismember(&blocked, SIGTERM) == 1) == (std::this_thread::get_id() != caller));
  });
}

TEST_CASE("room for descriptors leaves none open") {
  const auto lowest_free = [] {
    const int descriptor = ::open("/", O_PATH | O_CLOEXEC);
    ::close(descriptor);
    return descriptor;
  };
  const int before = lowest_free();
  expect_descriptors(500);
  expect_descriptors(static_cast<std::size_t>(-1) / 2);
  CHECK(lowest_free() == before);
}

TEST_CASE("a heap may be prepared by any thread, again and again, and holds what it held") {
  std::vector<std::string> before(1000, std::string(200, 'x'));
  hangtrace::memory::prepare_heap();
  hangtrace::memory::prepare_heap();
  std::thread([] {
    hangtrace::memory::prepare_heap();
    const std::vector<std::string> inside(10'000, std::string(100, 'y'));
    CHECK(std::ranges::all_of(inside, [](const std::string& one) { return one == std::string(100, 'y'); }));
  }).join();
  const std::vector<std::string> after(20'000, std::string(200, 'z'));
  CHECK(std::ranges::all_of(before, [](const std::string& one) { return one == std::string(200, 'x'); }));
  CHECK(std::ranges::all_of(after, [](const std::string& one) { return one == std::string(200, 'z'); }));
}

TEST_CASE("who gives way has its own slice again, and its nice value all the time") {
  struct {
    std::uint32_t size = 48, policy = 0;
    std::uint64_t flags = 0;
    std::int32_t nice = 0;
    std::uint32_t priority = 0;
    std::uint64_t runtime = 0, deadline = 0, period = 0;
  } before, meanwhile, after;
  std::thread([&] {
    REQUIRE(syscall(SYS_sched_getattr, 0, &before, sizeof before, 0) == 0);
    {
      const GivesWay politely;
      REQUIRE(syscall(SYS_sched_getattr, 0, &meanwhile, sizeof meanwhile, 0) == 0);
    }
    REQUIRE(syscall(SYS_sched_getattr, 0, &after, sizeof after, 0) == 0);
  }).join();
  CHECK(meanwhile.policy == before.policy);
  CHECK(meanwhile.nice == before.nice);
  CHECK(meanwhile.runtime >= before.runtime);  // the same where the kernel keeps no slice of a thread's own
  CHECK(after.policy == before.policy);
  CHECK(after.nice == before.nice);
  CHECK(after.runtime == before.runtime);
}
