// Futex calls and locks over any memory.
#include <sys/syscall.h>

#include "locks/decode.hpp"
#include "locks/futex.hpp"
#include "locks/once.hpp"
#include "memory/buffer_reader.hpp"
#include "tests/fuzz/harness.hpp"

namespace hangtrace::tests {

namespace {

constexpr memory::Address base = 0x7f0000001000;

constexpr std::string_view functions[] = {"pthread_mutex_lock",
                                          "pthread_mutex_clocklock",
                                          "pthread_cond_wait",
                                          "pthread_cond_timedwait",
                                          "pthread_rwlock_rdlock",
                                          "pthread_rwlock_wrlock",
                                          "pthread_join",
                                          "sem_wait",
                                          "pthread_barrier_wait",
                                          "__lll_lock_wait_private",
                                          "PyThread_acquire_lock_timed",
                                          "take_gil",
                                          "gomp_team_barrier_wait_end",
                                          "std::__atomic_futex_unsigned_base::_M_futex_wait_until",
                                          "pthread_once",
                                          ""};

Bytes seed(std::uint64_t number, std::array<std::uint64_t, 6> arguments, unsigned function,
           std::initializer_list<std::uint32_t> words) {
  Bytes bytes;
  append_value(bytes, number);
  for (const std::uint64_t argument : arguments) append_value(bytes, argument);
  append_value(bytes, static_cast<std::uint8_t>(function));
  append_value(bytes, std::uint8_t{0});
  for (const std::uint32_t word : words) append_value(bytes, word);
  bytes.resize(bytes.size() + 256);
  return bytes;
}

}  // namespace

std::vector<Bytes> fuzz_seeds() {
  std::vector<Bytes> seeds;
  for (unsigned function = 0; function < std::size(functions); ++function) {
    seeds.push_back(seed(SYS_futex, {base, 128, 2, 0, 0, 0}, function, {2, 0, 75, 1, 0}));
    seeds.push_back(
        seed(SYS_futex, {base + 8, 0x189, 0, 0, 0, 0xffffffff}, function, {2, 1, 75, 1, 0, 1, 75, 79}));
    seeds.push_back(seed(SYS_futex, {base, 6 | 128, 0, 0, 0, 0}, function, {0x8000004b, 0, 75, 1, 32}));
  }
  seeds.push_back(seed(449, {base, 3, 0, 0, 0, 0}, 15, {5, 0, 0x1000, 0x7f00, 130, 0}));
  seeds.push_back(seed(SYS_restart_syscall, {base, 0, 0, 0, 0, 0}, 15, {0x0000cab8, 0x050f0000}));
  return seeds;
}

std::vector<std::string> fuzz_files() {
  return {};
}

void fuzz_one(std::span<const std::byte> input) {
  Taker taker(input);
  const auto number = static_cast<std::int64_t>(taker.value<std::uint64_t>());
  std::array<std::uint64_t, 6> arguments{};
  for (std::uint64_t& argument : arguments) argument = taker.value<std::uint64_t>();
  const std::string_view function = functions[taker.value<std::uint8_t>() % std::size(functions)];
  const auto flags = taker.value<std::uint8_t>();
  memory::BufferReader memory;
  memory.add(base, taker.rest());
  const CountingReader reader(memory, 64 << 20);
  std::vector<proc::Mapping> mappings(1);
  mappings[0].start = base;
  mappings[0].end = base + 4096;
  mappings[0].readable = mappings[0].writable = true;
  mappings[0].shared = (flags & 1) != 0;
  const auto mapping_at = [&mappings](memory::Address at) { return proc::find_mapping(mappings, at); };
  const auto thread = [](int id) { return id == 75 || id == 79 ? std::optional(id) : std::nullopt; };
  const auto library = static_cast<locks::CLibrary>((flags >> 2) % 3);
  const locks::ProcessView process{reader, mapping_at, thread, thread, (flags & 2) == 0, library, 75};
  const std::string_view libc = "/usr/lib/libc.so.6";
  const std::vector<locks::FrameHint> frames{
      {"", libc, base, base + 64}, {function, libc, base + 64, base + 320}, {"work()", "/program"}};
  locks::restarted_call(arguments[0], arguments[1], reader);
  const auto call = locks::decode_futex(number, arguments, reader);
  if (!call) return;
  locks::Lock lock = locks::decode(*call, frames, process);
  promise(!lock.owner_exact || lock.owner, "an exact owner that is nobody");
  promise(!locks::name(lock.kind).empty(), "a kind without name");
  const bool exact = lock.owner_exact;
  const locks::StackOf other{79, frames, nullptr};
  locks::find_initialiser(lock, frames, std::span(&other, 1), reader);
  promise(lock.owner_exact == exact, "an initialiser told from memory");
}

}  // namespace hangtrace::tests
