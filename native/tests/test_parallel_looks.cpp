// Looks at several processes by several threads: what they see is what one thread sees. Under ThreadSanitizer
// (`make tsan`) this also shows that they share what they share in an orderly way.
#include <doctest/doctest.h>

#ifdef HT_LOOK_TARGET
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "capture/engine.hpp"
#include "tests/program.hpp"

namespace {

using namespace hangtrace;
using Clock = std::chrono::steady_clock;

constexpr auto patience = std::chrono::seconds(60);
constexpr std::size_t group = 5;
constexpr int rounds = 8;

// A program of many threads, blocked in many ways.
class Target : public tests::Program {
 public:
  Target() : Program(HT_LOOK_TARGET) {
    pollfd ready{output(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(patience).count())) == 1);
  }
};

struct Group {
  std::deque<Target> targets{group};
  std::vector<int> pids = [this] {
    std::vector<int> found;
    for (const Target& target : targets) found.push_back(target.pid());
    return found;
  }();
};

capture::Options by(std::size_t workers) {
  capture::Options options;
  options.workers = workers;
  options.bpf = false;
  return options;
}

std::string described(const std::vector<capture::Process>& processes) {
  std::ostringstream text;
  for (const capture::Process& process : processes) {
    text << process.pid << " error " << static_cast<int>(process.error) << "\n";
    for (const std::string& note : process.notes) text << "  note " << note << "\n";
    for (const capture::Thread& thread : process.threads) {
      text << "  " << thread.tid << " " << thread.comm << " " << thread.state << " "
           << thread.wait_channel.value_or("-") << " call " << thread.syscall.value_or(-2) << " ran "
           << thread.run_ns.value_or(0) << " moved " << thread.moved << thread.running << " complete "
           << thread.complete << " from " << static_cast<int>(thread.stack_from) << " "
           << thread.stack_problem << "\n";
      if (thread.lock) {
        text << "    lock " << static_cast<int>(thread.lock->kind) << " " << thread.lock->address << " owner "
             << thread.lock->owner.value_or(0) << " " << thread.lock->problem << "\n";
      }
      for (const capture::Frame& frame : thread.frames) {
        text << "    " << frame.function << " " << frame.module << " " << frame.address << " "
             << static_cast<int>(frame.found_by) << "\n";
      }
    }
  }
  return text.str();
}

// What one thread sees of the group once all of it sleeps.
std::string seen_by_one(const std::vector<int>& pids) {
  capture::Engine engine("/proc");
  const auto deadline = Clock::now() + patience;
  for (;;) {
    std::string first = described(engine.capture(pids, by(1)));
    if (first == described(engine.capture(pids, by(1)))) return first;
    REQUIRE(Clock::now() < deadline);
  }
}

}  // namespace

TEST_CASE("several threads see what one sees") {
  const Group made;
  for (int round = 0; round < rounds; ++round) {
    // One that moved in the midst of this is no difference between them.
    std::string one;
    std::string fresh;
    std::string again;
    const auto deadline = Clock::now() + patience;
    do {
      REQUIRE(Clock::now() < deadline);
      one = seen_by_one(made.pids);
      capture::Engine engine("/proc");
      fresh = described(engine.capture(made.pids, by(2 + round % 3)));
      again = described(engine.capture(made.pids, by(0)));
    } while (one != seen_by_one(made.pids));
    CHECK(one.find("pthread_mutex_lock") != std::string::npos);
    CHECK(fresh == one);
    CHECK(again == one);
  }
}

TEST_CASE("a process is announced by the thread that looks at it, in order and once") {
  const Group made;
  capture::Engine engine("/proc");
  for (const std::size_t workers : {1, 3}) {
    std::vector<int> announced;  // one call at a time
    std::set<std::thread::id> threads;
    capture::Options options = by(workers);
    options.on_process = [&](int pid) {
      announced.push_back(pid);
      threads.insert(std::this_thread::get_id());
    };
    engine.capture(made.pids, options);
    CHECK(announced == made.pids);
    CHECK(threads.size() <= workers);
  }
}

TEST_CASE("one process asked for twice is looked at by one thread") {
  const Group made;
  std::vector<int> twice = made.pids;
  twice.insert(twice.end(), made.pids.begin(), made.pids.end());
  std::set<std::thread::id> threads;
  capture::Options options = by(4);
  options.on_process = [&](int) { threads.insert(std::this_thread::get_id()); };
  CHECK(capture::Engine("/proc").capture(twice, options).size() == 2 * group);
  CHECK(threads == std::set{std::this_thread::get_id()});
}

TEST_CASE("an exception of the announcement passes through, and the engine goes on") {
  const Group made;
  capture::Engine engine("/proc");
  capture::Options options = by(3);
  options.on_process = [&](int pid) {
    if (pid == made.pids[2]) throw std::runtime_error("no more");
  };
  CHECK_THROWS_WITH(engine.capture(made.pids, options), "no more");
  CHECK(described(engine.capture(made.pids, by(3))).find("pthread_mutex_lock") != std::string::npos);
}

TEST_CASE("processes that end meanwhile are gone, and the others are looked at") {
  Group made;
  capture::Engine engine("/proc");
  capture::Options options = by(3);
  options.on_process = [&](int pid) {
    if (pid == made.pids[1]) made.targets.pop_back();
  };
  const auto seen = engine.capture(made.pids, options);
  REQUIRE(seen.size() == group);
  CHECK(seen.back().error != capture::Error::none);
  for (std::size_t i = 0; i + 1 < group; ++i) CHECK(seen[i].error == capture::Error::none);
}
#endif
