#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include <map>
#include <vector>

#include "locks/decode.hpp"
#include "locks/glibc.hpp"
#include "locks/musl.hpp"
#include "locks/once.hpp"
#include "locks/parked.hpp"
#include "memory/buffer_reader.hpp"

using namespace hangtrace::locks;
using hangtrace::memory::BufferReader;
using hangtrace::proc::Mapping;

namespace {

constexpr Address base = 0x7f0000001000;
constexpr int private_wait = 128;
constexpr const char* libc = "/usr/lib/libc.so.6";
constexpr const char* program = "/usr/bin/program";

// A process of threads 75 and 79, in which memory holds what a test puts there.
struct Fixture {
  BufferReader memory;
  std::vector<Mapping> mappings;
  std::map<int, int> threads{{75, 75}, {79, 79}};
  std::map<int, int> machine{{75, 75}, {79, 79}, {4000, 4000}};
  CLibrary library = CLibrary::glibc;
  bool same_ids = true;
  Sharers sharers = Sharers::alike;
  std::optional<bool> maps = true;

  static std::optional<int> find(const std::map<int, int>& ids, int id) {
    const auto it = ids.find(id);
    return it == ids.end() ? std::nullopt : std::optional(it->second);
  }

  Lock decode(const FutexCall& call, const std::vector<FrameHint>& frames) const {
    const ProcessView view{memory,
                           [this](Address at) { return hangtrace::proc::find_mapping(mappings, at); },
                           [this](int id) { return find(threads, id); },
                           [this](int id) { return find(machine, id); },
                           same_ids,
                           library,
                           75,
                           [this](const SharedKey&, bool) { return sharers; },
                           [this](int, const SharedKey&) { return maps; }};
    return hangtrace::locks::decode(call, frames, view);
  }

  void put(const glibc::Mutex& mutex) { memory.add_value(base, mutex); }
};

FutexCall call_of(int op, std::uint64_t expected, Address word = base) {
  FutexCall call;
  call.word = word;
  call.op = op;
  call.expected = expected;
  call.is_private = true;
  return call;
}

std::vector<FrameHint> under(std::string_view function) {
  return {{"", libc}, {function, libc}, {"work()", program}, {"main", program}};
}

const std::vector<FrameHint> mutex_frames = under("pthread_mutex_lock");

}  // namespace

TEST_CASE("futex calls are told from other calls and operations") {
  const BufferReader memory;
  const auto decode = [&memory](std::int64_t number, std::array<std::uint64_t, 6> arguments) {
    return decode_futex(number, arguments, memory);
  };
  const auto wait = decode(SYS_futex, {base, private_wait, 2, 0, 0, 0});
  REQUIRE(wait);
  CHECK(wait->op == futex_wait);
  CHECK(wait->is_private);
  CHECK_FALSE(wait->timeout);
  const auto python = decode(SYS_futex, {base, 0x189, 0, 0x7ffd0000, 0, 0xffffffff});
  REQUIRE(python);
  CHECK(python->op == futex_wait_bitset);
  CHECK(python->is_private);
  CHECK(python->timeout);
  const auto join = decode(SYS_futex, {base, 0x109, 79, 0, 0, 0xffffffff});
  REQUIRE(join);
  CHECK(join->op == futex_wait_bitset);
  CHECK_FALSE(join->is_private);
  CHECK(decode(SYS_futex, {base, 6 | 128, 0, 0, 0, 0})->op == futex_lock_pi);
  CHECK_FALSE(decode(SYS_futex, {base, 1 | 128, 1, 0, 0, 0}));  // a wake does not sleep
  CHECK_FALSE(decode(SYS_read, {base, 0, 0, 0, 0, 0}));
  const auto newer = decode(455, {base, 7, 0xffffffff, 2 | 128, 0, 0});
  REQUIRE(newer);
  CHECK(newer->expected == 7);
  CHECK(newer->is_private);
}

TEST_CASE("futex_waitv is read from memory") {
  BufferReader memory;
  struct Entry {
    std::uint64_t value, address;
    std::uint32_t flags, reserved;
  };
  memory.add_value(0x9000, Entry{5, base, 2 | 128, 0});
  const auto call = decode_futex(449, {0x9000, 3, 0, 0, 0, 0}, memory);
  REQUIRE(call);
  CHECK(call->word == base);
  CHECK(call->expected == 5);
  CHECK(call->others == 2);
  CHECK_FALSE(decode_futex(449, {0xa000, 3, 0, 0, 0, 0}, memory));
  CHECK_FALSE(decode_futex(449, {0x9000, 0, 0, 0, 0, 0}, memory));
}

#if defined(__x86_64__)
TEST_CASE("a restarted call is found in the code before it") {
  const auto bytes = [](BufferReader& memory, Address end, std::vector<unsigned char> code) {
    while (code.size() < 64) {
      code.insert(code.begin(), 0x90);
    }
    memory.add(end - code.size(), std::as_bytes(std::span(code)));
  };
  BufferReader memory;
  bytes(memory, 0x5000, {0xb8, 0xca, 0, 0, 0, 0x41, 0x89, 0xd2, 0x0f, 0x05});
  CHECK(restarted_call(0x5000, 0, memory) == SYS_futex);
  bytes(memory, 0x6000, {0xb8, 0xe6, 0, 0, 0, 0x0f, 0x05});
  CHECK(restarted_call(0x6000, 0, memory) == SYS_clock_nanosleep);
  // Not a call the kernel restarts in this way.
  bytes(memory, 0x7000, {0xb8, 0x2d, 0, 0, 0, 0x0f, 0x05});
  CHECK(restarted_call(0x7000, 0, memory) == std::nullopt);
  // Not behind a system call.
  bytes(memory, 0x8000, {0xb8, 0xca, 0, 0, 0, 0x90, 0x90});
  CHECK(restarted_call(0x8000, 0, memory) == std::nullopt);
  // syscall(SYS_futex, …): the number is an argument.
  bytes(memory, 0x9000, {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x0f, 0x05});
  bytes(memory, 0xa000, {0xbf, 0xca, 0, 0, 0, 0xe8, 0, 0, 0, 0});
  CHECK(restarted_call(0x9000, 0xa000, memory) == SYS_futex);
  CHECK(restarted_call(0x9000, 0, memory) == std::nullopt);
  CHECK(restarted_call(0xf000, 0, memory) == std::nullopt);
}
#endif

TEST_CASE("recognition: the innermost primitive, and who built on it") {
  CHECK(recognize(mutex_frames).primitive == Primitive::mutex);
  CHECK(recognize(under("___pthread_mutex_lock")).primitive == Primitive::mutex);
  CHECK(recognize(under("pthread_cond_timedwait")).primitive == Primitive::condition);
  CHECK(recognize(under("read")).primitive == Primitive::unknown);
  CHECK(recognize({}).primitive == Primitive::unknown);
  const std::vector<FrameHint> python{
      {"", libc}, {"sem_wait", libc}, {"PyThread_acquire_lock_timed", program}};
  CHECK(recognize(python).primitive == Primitive::python_lock);
  const std::vector<FrameHint> gil{{"", libc}, {"pthread_cond_timedwait", libc}, {"take_gil", program}};
  CHECK(recognize(gil).primitive == Primitive::gil);
  const std::vector<FrameHint> low{{"__lll_lock_wait_private", libc}, {"malloc", libc}};
  CHECK(recognize(low).primitive == Primitive::low_level_lock);
  const std::vector<FrameHint> low_mutex{{"__lll_lock_wait", libc}, {"pthread_mutex_lock", libc}};
  CHECK(recognize(low_mutex).primitive == Primitive::mutex);
  const std::vector<FrameHint> worker{{"", "/x/libgomp-a34b.so.1"}, {"", "/x/libgomp-a34b.so.1"}};
  CHECK(recognize(worker).primitive == Primitive::openmp);
}

TEST_CASE("recognition: a primitive that called back is not what is waited in") {
  const std::vector<FrameHint> frames{
      {"", libc}, {"sem_wait", libc}, {"init()", program}, {"__pthread_once_slow", libc}, {"main", program}};
  CHECK(recognize(frames).primitive == Primitive::semaphore);
  const std::vector<FrameHint> unnamed{{"", libc}, {"init()", program}, {"__pthread_once_slow", libc}};
  CHECK(recognize(unnamed).primitive == Primitive::unknown);
}

TEST_CASE("mutex: kinds and the owner") {
  const std::map<int, Kind> kinds{{0, Kind::mutex_normal},
                                  {1, Kind::mutex_recursive},
                                  {2, Kind::mutex_errorcheck},
                                  {3, Kind::mutex_adaptive}};
  for (const auto& [bits, kind] : kinds) {
    CAPTURE(bits);
    Fixture process;
    process.put({2, 0, 79, 1, bits, 0, 0});
    const Lock lock = process.decode(call_of(futex_wait, 2), mutex_frames);
    CHECK(lock.kind == kind);
    CHECK(lock.address == base);
    CHECK(lock.owner == 79);
    CHECK(lock.owner_exact);
    CHECK(lock.owner_from == "pthread_mutex_t.__owner");
    CHECK(lock.problem.empty());
  }
}

TEST_CASE("mutex: a timed wait says so") {
  Fixture process;
  process.put({2, 0, 79, 1, 0, 0, 0});
  FutexCall call = call_of(futex_wait_bitset, 2);
  call.timeout = true;
  const Lock lock = process.decode(call, under("pthread_mutex_clocklock"));
  CHECK(lock.kind == Kind::mutex_timed);
  CHECK(lock.owner == 79);
  CHECK(lock.call.timeout);
}

TEST_CASE("mutex: nobody is named unless every field fits") {
  struct Case {
    glibc::Mutex mutex;
    std::string_view problem;
  };
  const std::vector<Case> cases{
      {{0, 0, 79, 1, 0, 0, 0}, "released meanwhile"},
      {{2, 0, 0, 1, 0, 0, 0}, "locked, but no owner recorded"},
      {{2, 0, 79, 0, 0, 0, 0}, "locked, but no owner recorded"},
      {{2, 0, 79, 1, 0x7000, 0, 0}, "not a mutex of the known layout"},
      {{2, 0, -5, 1, 0, 0, 0}, "not a mutex of the known layout"},
      {{2, 0, 79, 1, 128, 0, 0}, "not a mutex of the known layout"},  // shared, but slept on as private
  };
  for (const Case& one : cases) {
    CAPTURE(one.problem);
    Fixture process;
    process.put(one.mutex);
    const Lock lock = process.decode(call_of(futex_wait, 2), mutex_frames);
    CHECK_FALSE(lock.owner);
    CHECK_FALSE(lock.owner_exact);
    CHECK(lock.problem == one.problem);
  }
  const Lock unreadable = Fixture().decode(call_of(futex_wait, 2), mutex_frames);
  CHECK_FALSE(unreadable.owner);
  CHECK(unreadable.problem == "futex word cannot be read");
}

TEST_CASE("mutex inherited through fork: the record is told, but not as a fact") {
  Fixture process;
  process.put({2, 0, 4000, 1, 0, 0, 0});  // thread 4000 lives, but in the parent
  const Lock lock = process.decode(call_of(futex_wait, 2), mutex_frames);
  CHECK(lock.owner == 4000);
  CHECK_FALSE(lock.owner_exact);
  CHECK(lock.problem == "owner thread does not exist in this process");
}

TEST_CASE("mutex shared between processes: its owner may be anywhere, its key is the mapping") {
  Fixture process;
  process.mappings.push_back(
      {base, base + 0x1000, 0x3000, 0xfe, 1, 77, true, true, false, true, false, "/dev/shm/x"});
  process.put({2, 0, 4000, 1, 128, 0, 0});
  FutexCall call = call_of(futex_wait, 2);
  call.is_private = false;
  const Lock lock = process.decode(call, mutex_frames);
  CHECK(lock.owner == 4000);
  CHECK(lock.owner_exact);
  REQUIRE(lock.shared_key);
  CHECK(lock.shared_key->device == makedev(0xfe, 1));
  CHECK(lock.shared_key->inode == 77);
  CHECK(lock.shared_key->offset == 0x3000);
  process.machine.clear();
  process.threads.clear();
  const Lock gone = process.decode(call, mutex_frames);
  CHECK_FALSE(gone.owner_exact);
  CHECK(gone.problem == "owner thread does not exist");
}

TEST_CASE("an id in shared memory is no owner where it may be that of another pid namespace") {
  Fixture process;
  process.mappings.push_back(
      {base, base + 0x1000, 0x3000, 0xfe, 1, 77, true, true, false, true, false, "/dev/shm/x"});
  FutexCall call = call_of(futex_wait, 2);
  call.is_private = false;
  const auto owned_by = [&](int tid) {
    process.memory = BufferReader{};
    process.put({2, 0, tid, 1, 128, 0, 0});
    return process.decode(call, mutex_frames);
  };
  process.sharers = Sharers::apart;
  for (const int tid : {75, 79, 4000, 5000}) {
    const Lock lock = owned_by(tid);
    CHECK_FALSE(lock.owner);
    CHECK_FALSE(lock.owner_exact);
    CHECK(lock.problem ==
          "owner id " + std::to_string(tid) + " of a lock shared across pid namespaces: whose is not known");
    CHECK(lock.shared_file == "/dev/shm/x");
  }
  process.sharers = Sharers::unseen;
  CHECK_FALSE(owned_by(75).owner);    // the waiter, or its namesake
  CHECK_FALSE(owned_by(5000).owner);  // nobody here
  CHECK(owned_by(79).owner == 79);
  CHECK_FALSE(owned_by(79).owner_exact);
  process.sharers = Sharers::alike;
  process.maps = false;
  CHECK(owned_by(4000).problem ==
        "owner id 4000 is that of a process that does not share it: whose is not known");
  CHECK_FALSE(owned_by(4000).unseen_owner);
  CHECK(owned_by(79).owner == 79);
  process.maps = std::nullopt;
  CHECK_FALSE(owned_by(4000).owner);
  CHECK(owned_by(4000).unseen_owner == 4000);
}

TEST_CASE("ids of another pid namespace are translated") {
  Fixture process;
  process.threads = {{1, 5001}, {9, 5009}};
  process.put({2, 0, 9, 1, 0, 0, 0});
  process.machine = process.threads;
  process.same_ids = false;
  CHECK(process.decode(call_of(futex_wait, 2), mutex_frames).owner == 5009);
  // One that cannot be translated would name a stranger among ours.
  process.put({2, 0, 77, 1, 0, 0, 0});
  const Lock unknown = process.decode(call_of(futex_wait, 2), mutex_frames);
  CHECK_FALSE(unknown.owner);
  CHECK(unknown.problem == "owner thread does not exist in this process");
}

TEST_CASE("robust and priority inheriting mutexes: the owner is in the word") {
  Fixture process;
  process.put({0x80000000u | 79, 0, 79, 1, 16, 0, 0});
  const Lock robust = process.decode(call_of(futex_wait, 0x80000000u | 79), mutex_frames);
  CHECK(robust.kind == Kind::mutex_robust);
  CHECK(robust.owner == 79);
  CHECK(robust.owner_exact);
  const Lock pi = process.decode(call_of(futex_lock_pi, 0), mutex_frames);
  CHECK(pi.kind == Kind::mutex_pi);
  CHECK(pi.owner == 79);
  Fixture died;
  died.put({0xc0000000u | 79, 0, 79, 1, 16, 0, 0});
  const Lock dead = died.decode(call_of(futex_wait, 0), mutex_frames);
  CHECK_FALSE(dead.owner_exact);
  CHECK(dead.problem == "owner thread died holding it");
}

TEST_CASE("a mutex nobody can name a frame of is recognised by its content, as a guess") {
  const std::vector<FrameHint> unnamed{{"", libc}, {"", program}};
  Fixture process;
  process.put({2, 0, 79, 1, 0, 0, 0});
  const Lock lock = process.decode(call_of(futex_wait, 2), unnamed);
  CHECK(lock.kind == Kind::mutex_normal);
  CHECK(lock.owner == 79);
  CHECK_FALSE(lock.owner_exact);
  for (const glibc::Mutex other :
       {glibc::Mutex{2, 0, 4000, 1, 0, 0, 0}, glibc::Mutex{2, 0, 79, 0, 0, 0, 0},
        glibc::Mutex{1, 0, 79, 1, 0, 0, 0}, glibc::Mutex{0x80000000u | 75, 0, 79, 1, 16, 0, 0},
        glibc::Mutex{2, 0, 79, 1, 0x1000, 0, 0}}) {
    Fixture another;
    another.put(other);
    const Lock plain = another.decode(call_of(futex_wait, 2), unnamed);
    CHECK(plain.kind == Kind::futex);
    CHECK_FALSE(plain.owner);
  }
  const std::vector<FrameHint> of_its_own{{"syscall", libc}, {"lock()", program}};
  const Lock foreign = process.decode(call_of(futex_wait, 2), of_its_own);
  CHECK(foreign.kind == Kind::futex);
  CHECK_FALSE(foreign.owner);
}

TEST_CASE("rwlock: which word is slept on, the writer, and readers that hold it") {
  const auto readers = under("pthread_rwlock_rdlock");
  const auto writers = under("pthread_rwlock_wrlock");
  SUBCASE("written by a thread") {
    Fixture process;
    process.memory.add_value(base, glibc::ReadWriteLock{1 << 3 | 7, 1, 3, 3, 0, 0, 79, 0});
    const Lock reading = process.decode(call_of(futex_wait_bitset, 3, base + 8), readers);
    CHECK(reading.kind == Kind::rwlock_read);
    CHECK(reading.address == base);
    CHECK(reading.owner == 79);
    CHECK(reading.readers == 0u);
    const Lock writing = process.decode(call_of(futex_wait_bitset, 3, base + 12), writers);
    CHECK(writing.kind == Kind::rwlock_write);
    CHECK(writing.address == base);
    CHECK(writing.owner == 79);
  }
  SUBCASE("held by readers") {
    Fixture process;
    process.memory.add_value(base, glibc::ReadWriteLock{2 << 3 | 2, 0, 2, 1, 0, 0, 0, 0});
    const Lock writing = process.decode(call_of(futex_wait_bitset, 2, base + 8), writers);
    CHECK(writing.address == base);
    CHECK_FALSE(writing.owner);
    CHECK(writing.readers == 2u);
    CHECK(writing.problem == "held for reading; readers are only counted");
  }
  SUBCASE("something else") {
    Fixture process;
    process.memory.add_value(base, glibc::ReadWriteLock{8, 0, 99, 3, 0, 0, 79, 0});
    CHECK_FALSE(process.decode(call_of(futex_wait_bitset, 3, base + 8), readers).owner);
    CHECK_FALSE(process.decode(call_of(futex_wait_bitset, 55, base + 8), writers).owner);
  }
}

TEST_CASE("join: the thread joined, if it is still there") {
  Fixture process;
  process.memory.add_value(base, std::uint32_t{79});
  FutexCall call = call_of(futex_wait_bitset, 79);
  call.is_private = false;
  const auto frames = under("pthread_join");
  const Lock lock = process.decode(call, frames);
  CHECK(lock.kind == Kind::join);
  CHECK(lock.owner == 79);
  CHECK(lock.owner_exact);
  process.memory.add_value(base, std::uint32_t{0});
  CHECK_FALSE(process.decode(call, frames).owner);
}

TEST_CASE("lock of a FILE: its owner stands beside it, as the address of a thread's descriptor") {
  constexpr Address descriptor = base + 0x1000;
  Fixture process;
  process.memory.add_value(base, glibc::StreamLock{2, 0, descriptor});
  process.memory.add_value(descriptor + 16, descriptor);
  process.memory.add_value(descriptor + 720, std::int32_t{79});
  const FutexCall call = call_of(futex_wait, 2);
  const std::vector<FrameHint> frames{{"__lll_lock_wait_private", libc}, {"fputs", libc}};
  const Lock lock = process.decode(call, frames);
  CHECK(lock.kind == Kind::mutex_normal);
  CHECK(lock.owner == 79);
  CHECK(lock.problem.empty());
  SUBCASE("a thread that is not there") {
    process.memory.add_value(descriptor + 720, std::int32_t{80});
  }
  SUBCASE("no descriptor") {
    process.memory.add_value(descriptor + 16, base);
  }
  SUBCASE("a bare word") {
    process.memory.add_value(base, glibc::StreamLock{2, 0, 0});
  }
  SUBCASE("another lock") {
    process.memory.add_value(base, glibc::StreamLock{2, -1, descriptor});
  }
  const Lock bare = process.decode(call, frames);
  CHECK(bare.kind == Kind::futex);
  CHECK_FALSE(bare.owner);
  CHECK(bare.problem == "lock inside the C library, which records no owner");
}

TEST_CASE("condition: object and mutex are found side by side on the stack") {
  for (const std::size_t word : {std::size_t{40}, std::size_t{44}, std::size_t{32}, std::size_t{36}}) {
    CAPTURE(word);
    constexpr Address stack = 0x7ffd00001000;
    Fixture process;
    process.memory.add_value(base + word, std::uint32_t{0});
    process.memory.add_value(base + 0x200, glibc::Mutex{0, 0, 0, 1, 0, 0, 0});
    std::array<std::uint64_t, 16> words{};
    words[3] = base + 0x200;
    words[7] = base;
    words[8] = base + 0x200;
    process.memory.add_value(stack, words);
    std::vector<FrameHint> frames = under("pthread_cond_wait");
    frames[0].stack_begin = stack - 0x40;
    frames[0].stack_end = stack;
    frames[1].stack_begin = stack;
    frames[1].stack_end = stack + sizeof words;
    const Lock lock = process.decode(call_of(futex_wait_bitset, 0, base + word), frames);
    CHECK(lock.kind == Kind::condition);
    CHECK(lock.address == base);
    CHECK(lock.mutex == base + 0x200);
    CHECK_FALSE(lock.owner);
  }
}

TEST_CASE("condition: a woken waiter waits for its mutex") {
  Fixture process;
  process.put({2, 0, 79, 2, 0, 0, 0});
  const Lock lock = process.decode(call_of(futex_wait, 2), under("pthread_cond_wait"));
  CHECK(lock.kind == Kind::mutex_normal);
  CHECK(lock.owner == 79);
}

TEST_CASE("what nobody owns has no owner") {
  for (const auto& [function, kind] : std::map<std::string, Kind>{{"sem_wait", Kind::semaphore},
                                                                  {"pthread_barrier_wait", Kind::barrier},
                                                                  {"pthread_once", Kind::once},
                                                                  {"poll", Kind::futex}}) {
    CAPTURE(function);
    Fixture process;
    process.memory.add_value(base, std::uint32_t{79});
    const Lock lock = process.decode(call_of(futex_wait_bitset, 79), under(function));
    CHECK(lock.kind == kind);
    CHECK_FALSE(lock.owner);
    CHECK(lock.value == 79);
  }
}

TEST_CASE("musl: a normal mutex has no owner, the others have") {
  constexpr Address list = base + 0x800;
  Fixture process;
  process.library = CLibrary::musl;
  const auto put = [&process](const musl::Mutex& mutex) { process.memory.add_value(base, mutex); };
  const auto wait = [](std::uint32_t expected) { return call_of(futex_wait, expected, base + 4); };
  // Debian's and Alpine's are stripped: no frame names anything.
  for (const auto& frames : {mutex_frames, std::vector<FrameHint>{{"", libc}, {"", libc}}}) {
    CAPTURE(frames[1].function);
    put({0, 0x80000010, 1, 0, 0, 0, 0, 0});
    const Lock normal = process.decode(wait(0x80000010), frames);
    CHECK(normal.kind == Kind::mutex_normal);
    CHECK(normal.address == base);
    CHECK_FALSE(normal.owner);
    process.memory.add_value(list, base + offsetof(musl::Mutex, next));
    put({1, 0x8000004f, 1, 0, 0, 0, list, list});
    const Lock recursive = process.decode(wait(0x8000004f), frames);
    CHECK(recursive.kind == Kind::mutex_recursive);
    CHECK(recursive.address == base);
    CHECK(recursive.owner == 79);
    CHECK(recursive.owner_exact);
    put({1, 0xc0000000, 1, 0, 0, 0, list, list});
    const Lock left = process.decode(wait(0xc0000000), frames);
    CHECK(left.kind == Kind::mutex_recursive);
    CHECK_FALSE(left.owner);
    CHECK(left.problem == "owner thread died holding it");
    process.memory.add_value(list, Address{0});
    put({1, 0x8000004f, 1, 0, 0, 0, list, list});
    CHECK_FALSE(process.decode(wait(0x8000004f), frames).owner);  // in nobody's list of held mutexes
  }
}

TEST_CASE("musl: a thread that is joined is one that points at itself") {
  Fixture process;
  process.library = CLibrary::musl;
  const std::vector<FrameHint> unnamed{{"", libc}, {"", libc}};
  musl::Thread thread{};
  thread.self = base;
  thread.previous = thread.next = base;
  thread.tid = 79;
  thread.detach_state = 2;
  process.memory.add_value(base, thread);
  const FutexCall call = call_of(futex_wait, 2, base + musl::thread_word);
  for (const auto& frames : {unnamed, under("pthread_join")}) {
    const Lock lock = process.decode(call, frames);
    CHECK(lock.kind == Kind::join);
    CHECK(lock.owner == 79);
    CHECK(lock.owner_exact);
  }
  thread.next = base + 0x40;
  process.memory.add_value(base, thread);
  CHECK_FALSE(process.decode(call, unnamed).owner);
  // The layout of another C library: the word is a thread's id there.
  process.library = CLibrary::glibc;
  CHECK_FALSE(process.decode(call, unnamed).owner);
}

TEST_CASE("a priority inheriting mutex that can never be had is found on the stack of who wants it") {
  constexpr Address stack = 0x7ffd00001000;
  constexpr Address word = stack + 8;
  Fixture process;
  const auto pi = [](int owner, int users) {
    return glibc::Mutex{
        0x80000000u | static_cast<unsigned>(owner), 0, owner, static_cast<unsigned>(users), 32, 0, 0};
  };
  process.put(pi(79, 1));
  process.memory.add_value(base + 0x100, pi(75, 1));  // held by the one who waits
  std::array<std::uint64_t, 8> words{};
  words[3] = base + 0x100;
  words[5] = base;
  process.memory.add_value(stack, words);
  std::vector<FrameHint> frames = under("pthread_mutex_lock");
  frames[0].stack_begin = stack;
  frames[0].stack_end = frames[1].stack_begin = stack + 16;
  frames[1].stack_end = stack + sizeof words;
  const Lock lock = process.decode(call_of(futex_wait_bitset, 0, word), frames);
  CHECK(lock.kind == Kind::mutex_pi);
  CHECK(lock.address == base);
  CHECK(lock.owner == 79);
  CHECK_FALSE(lock.owner_exact);
  // Two that fit are none.
  process.memory.add_value(base + 0x200, pi(79, 1));
  words[6] = base + 0x200;
  process.memory.add_value(stack, words);
  const Lock either = process.decode(call_of(futex_wait_bitset, 0, word), frames);
  CHECK(either.kind == Kind::mutex_pi);
  CHECK_FALSE(either.owner);
}

TEST_CASE("musl: a priority inheriting mutex that can never be had is a guess until its circle is closed") {
  constexpr Address stack = 0x7ffd00001000;
  constexpr Address list = base + 0x800;
  Fixture process;
  process.library = CLibrary::musl;
  const auto put = [&process](Address at, int type, std::uint32_t owner) {
    process.memory.add_value(list + at - base, at + offsetof(musl::Mutex, next));
    process.memory.add_value(at, musl::Mutex{type, owner, 0, 0, 0, 0, list + at - base, list + at - base});
  };
  put(base, musl::mutex_priority_inherit, 79);
  put(base + 0x100, musl::mutex_priority_inherit, 75);  // held by the one who waits
  put(base + 0x200, 1, 79);                             // recursive
  Mapping mapping;
  mapping.start = stack;
  mapping.end = stack + 0x400;  // as the stack of a thread may end there
  process.mappings.push_back(mapping);
  std::array<std::uint64_t, 128> words{};
  words[10] = base + 0x100;
  words[11] = base + 0x200;
  words[12] = words[14] = base;
  process.memory.add_value(stack, words);
  const std::vector<FrameHint> frames{{"", libc, stack, stack + 64}, {"", libc}};
  const FutexCall call = call_of(futex_wait, 0, stack + 0x100);
  Lock lock = process.decode(call, frames);
  CHECK(lock.kind == Kind::mutex_pi);
  CHECK(lock.address == base);
  CHECK(lock.owner == 79);
  CHECK_FALSE(lock.owner_exact);
  REQUIRE(lock.unconfirmed);
  // The owner waits for a mutex of the parked thread, or it does not.
  Lock other;
  other.kind = Kind::mutex_pi;
  other.owner = 75;
  Lock parked = lock;
  confirm_parked(std::array{Waiter{75, &parked}, Waiter{79, &other}});
  CHECK(parked.owner == 79);
  for (const auto& change : {Kind::mutex_normal, Kind::mutex_pi}) {
    other.kind = change;
    other.owner = change == Kind::mutex_pi ? std::optional(80) : std::optional(75);
    parked = lock;
    confirm_parked(std::array{Waiter{75, &parked}, Waiter{79, &other}, Waiter{80, nullptr}});
    CHECK_FALSE(parked.owner);
    CHECK(parked.kind == Kind::futex);
    CHECK(parked.address == call.word);
  }
  // Two that fit are none; nor is one that the thread does not sleep for on its own stack.
  CHECK(process.decode(call_of(futex_wait, 0, stack + 0x1000), frames).kind == Kind::futex);
  put(base + 0x300, musl::mutex_priority_inherit, 79);
  words[20] = base + 0x300;
  process.memory.add_value(stack, words);
  CHECK(process.decode(call, frames).kind == Kind::futex);
}

TEST_CASE("once: the one thread that runs the initialisation, by what it was called with") {
  constexpr Address stack = 0x7ffd00001000;
  BufferReader memory;
  std::array<std::uint64_t, 4> words{0, 0, base, 0};
  memory.add_value(stack, words);
  const std::vector<FrameHint> running{
      {"nanosleep", libc}, {"init()", program}, {"__pthread_once_slow", libc, stack, stack + sizeof words}};
  const std::vector<FrameHint> elsewhere{
      {"nanosleep", libc}, {"init()", program}, {"__pthread_once_slow", libc, stack, stack + 16}};
  const std::vector<FrameHint> waiter = under("__pthread_once_slow");
  Lock waiting;
  waiting.kind = Kind::once;
  waiting.address = waiting.call.word = base;
  const auto owner = [&](std::vector<StackOf> others) {
    Lock lock = waiting;
    find_initialiser(lock, waiter, others, memory);
    CHECK_FALSE(lock.owner_exact);
    return lock.owner;
  };
  CHECK(owner({{75, waiter, &waiting}, {79, running}}) == 79);
  CHECK(owner({{79, elsewhere}}) == std::nullopt);
  CHECK(owner({{79, running}, {80, running}}) == std::nullopt);
  CHECK(owner({{79, running, &waiting}}) == std::nullopt);
  // Who came to it again out of the initialisation waits for itself.
  std::vector<FrameHint> again = under("__pthread_once_slow");
  again.resize(2);
  again.insert(again.end(),
               {{"init()", program}, {"__pthread_once_slow", libc, stack, stack + sizeof words}});
  CHECK(owner({{75, again, &waiting}, {79, waiter, &waiting}}) == 75);
  CHECK(owner({{75, again, &waiting}, {79, running}}) == std::nullopt);
  // Two frames of one call are no second call.
  again.erase(again.begin() + 2);
  CHECK(owner({{75, again, &waiting}}) == std::nullopt);
}

TEST_CASE("once: a local variable is initialised by who is deeper in its function") {
  const BufferReader memory;
  const std::vector<FrameHint> waiter{{"syscall", libc},
                                      {"__cxa_guard_acquire", "/libstdc++.so.6"},
                                      {"instance()", program},
                                      {"main", program}};
  const std::vector<FrameHint> running{
      {"nanosleep", libc}, {"Slow::Slow()", program}, {"instance()", program}};
  const std::vector<FrameHint> elsewhere{{"nanosleep", libc}, {"main", program}};
  Lock waiting;
  waiting.kind = Kind::once;
  waiting.address = waiting.call.word = base;
  Lock lock = waiting;
  const std::array<StackOf, 3> others{StackOf{75, waiter, &waiting}, StackOf{79, running},
                                      StackOf{80, elsewhere}};
  find_initialiser(lock, waiter, others, memory);
  CHECK(lock.owner == 79);
  CHECK_FALSE(lock.owner_exact);
}

TEST_CASE("once: a local variable whose initialisation asks for it again") {
  const BufferReader memory;
  Lock waiting;
  waiting.kind = Kind::once;
  waiting.address = waiting.call.word = base;
  const auto owner = [&](Address outer_pc) {
    const std::vector<FrameHint> waiter{{"syscall", libc},
                                        {"__cxa_guard_acquire", "/libstdc++.so.6"},
                                        {"instance()", program, 0, 0, 0x1100},
                                        {"Slow::Slow()", program},
                                        {"instance()", program, 0, 0, outer_pc}};
    Lock lock = waiting;
    const std::array<StackOf, 1> others{StackOf{75, waiter, &waiting}};
    find_initialiser(lock, waiter, others, memory);
    return lock.owner;
  };
  CHECK(owner(0x1140) == 75);
  CHECK(owner(0x1080) == std::nullopt);  // called itself before it came to the variable
  CHECK(owner(0) == std::nullopt);
}
