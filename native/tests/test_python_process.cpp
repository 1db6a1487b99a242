#include <doctest/doctest.h>

#include <random>

#include "fake_python.hpp"

using namespace hangtrace;
using memory::Address;
using tests::FakePython;

namespace {

// Two functions on one thread: `inner` was called by `outer`.
struct Two {
  FakePython fake;
  memory::BufferReader reader;
  Address outer_code = fake.code("outer", 10, {"group", "count"}, 4);
  Address inner_code = fake.code("inner", 50, {"x"}, 2);
  Address outer = fake.frame(outer_code, 3, 0, {fake.str("world"), fake.integer(3), 0, 0, 0, 0});
  Address inner = fake.frame(inner_code, 1, outer, {0, 0, 0});
};

}  // namespace

TEST_CASE("frames, lines and locals of a thread") {
  Two two;
  two.fake.thread(0x1230, 77, two.inner);
  auto process = two.fake.attach(two.reader);
  REQUIRE(process);
  CHECK(process->version() == "3.11.7");
  const auto state = process->read();
  REQUIRE(state);
  CHECK(state->problem == "");
  CHECK(state->layout_from == "table 3.11");
  REQUIRE(state->threads.size() == 1);
  const auto& thread = state->threads[0];
  CHECK(thread.native_tid == 77);
  CHECK(thread.problem == "");
  REQUIRE(thread.frames.size() == 2);
  CHECK(thread.frames[0].function == "Class.inner");
  CHECK(thread.frames[0].file == "/app/inner.py");
  CHECK(thread.frames[0].line == 51);
  CHECK_FALSE(thread.frames[0].entry);
  CHECK(thread.frames[1].function == "Class.outer");
  CHECK(thread.frames[1].line == 13);
  CHECK(thread.frames[1].entry);
  CHECK(process->frame_local(thread, 1, "group") == python::SimpleValue(std::string("world")));
  CHECK(process->frame_local(thread, 1, "count") == python::SimpleValue(std::int64_t{3}));
  CHECK_FALSE(process->frame_local(thread, 0, "x"));  // not set yet
  CHECK_FALSE(process->frame_local(thread, 9, "x"));
  CHECK(process->argv() == std::vector<std::string>{"a.py"});
}

TEST_CASE("a code object that is replaced at its address is read again") {
  Two two;
  two.fake.thread(0x1230, 77, two.inner);
  auto process = two.fake.attach(two.reader);
  REQUIRE(process);
  CHECK(process->read()->threads.at(0).frames.at(0).function == "Class.inner");
  const auto name = two.fake.str("replaced");
  two.fake.set(two.inner_code + two.fake.layout.code_qualname, name);
  two.reader.add(FakePython::kBase, two.fake.bytes());
  CHECK(process->read()->threads.at(0).frames.at(0).function == "replaced");
}

TEST_CASE("thread ids of another pid namespace") {
  Two two;
  two.fake.thread(0x1230, 7, two.inner);
  two.fake.thread(0x1238, 8, two.inner);
  auto process = two.fake.attach(two.reader);
  REQUIRE(process);
  const auto state = process->read({{7, 4007}});
  REQUIRE(state);
  REQUIRE(state->threads.size() == 2);
  CHECK(state->threads[0].native_tid == 0);  // nobody has the id 8
  CHECK(state->threads[1].native_tid == 4007);
}

TEST_CASE("glibc's note of the thread id is believed first") {
  Two two;
  const auto pthread = two.fake.space(1024);
  two.fake.set(pthread, pthread);
  two.fake.set(pthread + 16, pthread);
  two.fake.set32(pthread + 720, 91);
  const auto other = two.fake.space(1024);  // not a struct pthread
  two.fake.set32(other + 720, 92);
  two.fake.thread(pthread, 5, two.inner);
  two.fake.thread(other, 6, two.inner);
  auto process = two.fake.attach(two.reader);
  REQUIRE(process);
  const auto state = process->read();
  REQUIRE(state);
  CHECK(state->threads.at(0).native_tid == 6);
#if defined(__x86_64__)
  CHECK(state->threads.at(1).native_tid == 91);
#endif
}

TEST_CASE("who has the GIL") {
  Two two;
  const auto first = two.fake.thread(0x1230, 7, two.inner);
  two.fake.thread(0x1238, 8, two.inner);
  const auto gil = two.fake.runtime() + two.fake.layout.runtime_gil;
  two.fake.set(gil + two.fake.layout.gil_holder, first);
  two.fake.set32(gil + two.fake.layout.gil_locked, 1);
  auto process = two.fake.attach(two.reader);
  REQUIRE(process);
  auto state = process->read();
  REQUIRE(state);
  REQUIRE(state->gils.size() == 1);
  CHECK(state->gils[0].address == gil);
  CHECK(state->gils[0].locked);
  CHECK(state->gils[0].holder_tid == 7);
  CHECK(state->threads.at(1).holds_gil);
  CHECK_FALSE(state->threads.at(0).holds_gil);
  two.fake.set32(gil + two.fake.layout.gil_locked, 0);  // `last_holder` alone proves nothing
  two.reader.add(FakePython::kBase, two.fake.bytes());
  state = process->read();
  CHECK_FALSE(state->gils.at(0).locked);
  CHECK(state->gils.at(0).holder_tid == 0);
  CHECK_FALSE(state->threads.at(1).holds_gil);
}

namespace {

// One thread sleeps on a lock that is a local of its frame; another one has the lock's __exit__ on its stack.
struct Locks {
  FakePython fake;
  memory::BufferReader reader;
  Address semaphore = fake.space(32);
  Address lock = 0;
  Address exit = 0;

  explicit Locks(const std::string& type) {
    lock = fake.object_of(type, {semaphore, 0, 1});
    const Address name = fake.space(16);
    fake.copy(name, "__exit__", 9);
    exit = fake.object_of("builtin_function_or_method", {fake.put_word(name), lock});
    const auto waits = fake.code("waits", 1, {"lock"}, 2);
    fake.thread(0x1230, 7, fake.frame(waits, 0, 0, {lock, 0, 0}));
  }
  // A frame whose only stack value is `exit`; `exceptions` says whether a handler needs it at unit 5.
  void add_holder(const std::string& exceptions, const std::vector<std::string>& calls = {},
                  Address inner = 0) {
    const auto code = fake.code("holds", 20, {"a", "b"}, 3, exceptions, calls);
    const auto frame = fake.frame(code, 5, 0, {0, 0, exit, 0, 0});
    if (inner == 0) {
      fake.thread(0x1238, 8, frame);
    } else {
      fake.thread(0x1238, 8, fake.frame(inner, 1, frame, {0, 0}));
    }
  }
  python::LockFacts facts(std::vector<int> not_asleep = {}) {
    auto process = fake.attach(reader);
    const auto state = process->read();
    const auto& waiter = state->threads.back();
    REQUIRE(waiter.native_tid == 7);
    return process->describe_lock(*state, waiter, semaphore, not_asleep);
  }
};

const std::string kCovered = {static_cast<char>(128 | 2), 10, 30, 1 << 1};  // units 2 to 11 need one value
const std::string kElsewhere = {static_cast<char>(128 | 6), 10, 30, 1 << 1};

}  // namespace

TEST_CASE("a lock held by a with block") {
  Locks locks("_thread.lock");
  locks.add_holder(kCovered);
  const auto facts = locks.facts();
  CHECK(facts.object == locks.lock);
  CHECK(facts.type_name == "_thread.lock");
  CHECK(facts.owner_from == python::LockOwnerFrom::with_block);
  CHECK(facts.owner_tid == 8);
  CHECK(facts.owner_function == "Class.holds");
  CHECK(facts.owner_line == 25);
  CHECK(facts.problem == "");
}

TEST_CASE("who may have released the lock inside of the with block does not hold it") {
  for (const std::string name : {"release", "release_lock", "__exit__"}) {
    CAPTURE(name);
    Locks locks("_thread.lock");
    locks.add_holder(kCovered, {"print", name});
    const auto facts = locks.facts();
    CHECK(facts.owner_tid == 0);
    CHECK(facts.owner_from == python::LockOwnerFrom::nowhere);
    CHECK(facts.problem.find("may have released") != std::string::npos);
  }
}

TEST_CASE("a function called in the with block may have released the lock, too") {
  Locks locks("_thread.lock");
  locks.add_holder(kCovered, {"helper"}, locks.fake.code("helper", 40, {"lock"}, 1, "", {"release"}));
  CHECK(locks.facts().owner_tid == 0);
}

TEST_CASE("code in the with block that releases nothing changes nothing") {
  Locks locks("_thread.lock");
  locks.add_holder(kCovered, {"helper"},
                   locks.fake.code("helper", 40, {"lock"}, 1, "", {"sleep", "acquire"}));
  CHECK(locks.facts().owner_tid == 8);
}

TEST_CASE("who may have released the lock in frames that are left out does not hold it") {
  for (const int depth : {100, 9000}) {
    CAPTURE(depth);
    Locks locks("_thread.lock");
    const auto holds = locks.fake.code("holds", 20, {"a", "b"}, 3, kCovered);
    const auto inner = locks.fake.code("inner", 40, {"lock"}, 1, "", {"sleep"});
    auto frame = locks.fake.frame(holds, 5, 0, {0, 0, locks.exit, 0, 0});
    for (int i = 0; i < depth; ++i) frame = locks.fake.frame(inner, 1, frame, {0, 0});
    locks.fake.thread(0x1238, 8, frame);
    auto process = locks.fake.attach(locks.reader);
    const auto state = process->read();
    const auto& holder = state->threads.front();
    REQUIRE(holder.problem == "");
    REQUIRE(holder.frames.back().function == "Class.holds");
    REQUIRE((holder.left_out > 0) == (depth > 8192));
    const auto facts = process->describe_lock(*state, state->threads.back(), locks.semaphore, {});
    CHECK(facts.owner_tid == (depth > 8192 ? 0 : 8));
    CHECK((facts.problem.find("not all frames") != std::string::npos) == (depth > 8192));
  }
}

TEST_CASE("a frame in the with block whose values were not read may have released the lock") {
  Locks locks("_thread.lock");
  const auto code = locks.fake.code("helper", 40, {"lock"}, 1, "", {"sleep"});
  locks.add_holder(kCovered, {"helper"}, code);
  auto process = locks.fake.attach(locks.reader);
  auto state = process->read();
  REQUIRE(process->describe_lock(*state, state->threads.back(), locks.semaphore, {}).owner_tid == 8);
  state->threads.front().frames.front().slots.clear();
  CHECK(process->describe_lock(*state, state->threads.back(), locks.semaphore, {}).owner_tid == 0);
}

TEST_CASE("leavings on a value stack prove nothing") {
  Locks locks("_thread.lock");
  locks.add_holder(kElsewhere);
  const auto facts = locks.facts();
  CHECK(facts.object == locks.lock);
  CHECK(facts.owner_from == python::LockOwnerFrom::nowhere);
  CHECK(facts.owner_tid == 0);
  CHECK(facts.problem != "");
}

TEST_CASE("of a thread that ran meanwhile it is said") {
  Locks locks("_thread.lock");
  locks.add_holder(kCovered);
  const auto facts = locks.facts({8});
  CHECK(facts.owner_tid == 8);
  CHECK(facts.owner_from == python::LockOwnerFrom::running_block);
}

TEST_CASE("a lock that is free has no owner") {
  Locks locks("_thread.lock");
  locks.add_holder(kCovered);
  locks.fake.set(locks.lock + 32, 0);
  const auto facts = locks.facts();
  CHECK(facts.owner_tid == 0);
  CHECK(facts.problem == "nobody holds it now");
}

TEST_CASE("two holders of one lock are a contradiction") {
  Locks locks("_thread.lock");
  locks.add_holder(kCovered);
  const auto code = locks.fake.code("also", 20, {}, 1, kCovered);
  locks.fake.thread(0x1240, 9, locks.fake.frame(code, 5, 0, {locks.exit}));
  const auto facts = locks.facts();
  CHECK(facts.owner_tid == 0);
  CHECK(facts.owner_from == python::LockOwnerFrom::nowhere);
  CHECK(facts.problem == "2 threads stand in a `with` of it");
}

TEST_CASE("an RLock tells its owner") {
  Locks locks("_thread.RLock");
  locks.fake.set(locks.lock + 24, 0x1238);
  locks.fake.set(locks.lock + 32, 3);
  locks.add_holder(kElsewhere);
  const auto facts = locks.facts();
  CHECK(facts.recursive);
  CHECK(facts.owner_from == python::LockOwnerFrom::rlock_owner);
  CHECK(facts.owner_tid == 8);
  CHECK(facts.count == 3);
}

TEST_CASE("a lock that is not among the values") {
  Locks locks("_thread.lock");
  locks.fake.set(locks.lock + 16, locks.semaphore + 64);
  const auto facts = locks.facts();
  CHECK(facts.object == 0);
  CHECK(facts.problem != "");
}

TEST_CASE("chains without an end") {
  Two two;
  two.fake.set(two.outer + two.fake.layout.frame_previous, two.inner);
  const auto first = two.fake.thread(0x1230, 7, two.inner);
  const auto second = two.fake.thread(0x1238, 8, 0);
  two.fake.set(first + two.fake.layout.thread_next, second);
  two.fake.set(two.fake.interpreter() + two.fake.layout.interpreter_next, two.fake.interpreter());
  auto process = two.fake.attach(two.reader);
  REQUIRE(process);
  const auto state = process->read();
  REQUIRE(state);
  CHECK(state->problem != "");
  REQUIRE(state->threads.size() == 2);
  CHECK(state->threads[0].frames.empty());
  CHECK(state->threads[1].frames.size() == 2);
  CHECK(state->threads[1].problem == "the chain of frames is damaged");
}

TEST_CASE("a frame without a code object ends the chain, with a reason") {
  Two two;
  two.fake.set(two.outer + two.fake.layout.frame_code, two.fake.str("no code"));
  two.fake.thread(0x1230, 7, two.inner);
  auto process = two.fake.attach(two.reader);
  const auto state = process->read();
  REQUIRE(state);
  CHECK(state->threads.at(0).frames.size() == 1);
  CHECK(state->threads.at(0).problem == "a frame has no readable code object");
}

TEST_CASE("no runtime, no layout, no interpreter") {
  FakePython fake;
  memory::BufferReader nothing;
  std::vector<proc::Mapping> mappings;
  CHECK_FALSE(
      python::PythonProcess::attach(nothing, mappings, [](const auto&, const char*) { return 4096; }));
  auto unreadable = fake.attach_only(nothing);
  REQUIRE(unreadable);
  CHECK_FALSE(unreadable->read());
  CHECK(unreadable->problem() != "");
  CHECK(unreadable->argv().empty());
  CHECK(unreadable->environ(std::vector<std::string>{"A"}).empty());
  fake.set(fake.runtime() + fake.layout.runtime_interpreters, 0);
  memory::BufferReader reader;
  auto starting = fake.attach(reader);
  REQUIRE(starting);
  CHECK_FALSE(starting->read());
  CHECK(starting->problem() == "no interpreter: Python starts or has ended");
}

TEST_CASE("damaged memory of any kind is survived") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 1500; ++round) {
    Locks locks(round % 2 ? "_thread.lock" : "_thread.RLock");
    locks.add_holder(kCovered);
    locks.fake.add_module("os", {{locks.fake.str("environ"), locks.lock}});
    memory::BufferReader sound;
    locks.fake.attach(sound);  // completes the memory
    auto& bytes = locks.fake.bytes();
    for (int change = 0; change < 1 + round % 6; ++change) {
      const std::size_t at = random() % (bytes.size() / 8) * 8;
      std::uint64_t value = random();
      if (random() % 2) value = FakePython::kBase + value % bytes.size() / 8 * 8;  // into the memory
      std::memcpy(&bytes[at], &value, 8);
    }
    memory::BufferReader reader;
    reader.add(FakePython::kBase, bytes);
    auto process = locks.fake.attach_only(reader);
    REQUIRE(process);
    const auto state = process->read();
    process->argv();
    process->environ(std::vector<std::string>{"PATH"});
    if (!state) continue;
    for (const auto& thread : state->threads) {
      CHECK(thread.frames.size() <= 8192);
      process->describe_lock(*state, thread, locks.semaphore, {});
      process->frame_local(thread, 0, "lock");
    }
  }
}
