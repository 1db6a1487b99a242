// Runs a harness over inputs mutated at random, the same ones for the same seed:
//   fuzz_<thing> [--iterations N] [--seed S] [--first I] [--input FILE]
// Iteration I depends on S and I alone (and on the files of the machine, where the harness takes some), so a
// failure is seen again with --first I --iterations 1. Each input may use only so much processor time and
// memory.
#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>

#include "tests/fuzz/harness.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

using namespace hangtrace::tests;
using Random = std::mt19937_64;

constexpr double most_seconds = 5;                  // of processor time, an input
constexpr int patience = 20;                        // seconds of it, then the input is given up
constexpr std::size_t most_live = 256 << 20;        // bytes held at once
constexpr std::size_t most_allocated = 4ull << 30;  // bytes in all
constexpr std::uintmax_t largest_file = 512 << 10;
constexpr std::size_t most_files = 60;

std::size_t live;
std::size_t live_peak;
std::size_t allocated;
unsigned long long current_seed;
unsigned long long current_iteration;

void say_where() {
  char text[160];
  const int size = std::snprintf(text, sizeof text, "fuzz: at --seed %llu --first %llu --iterations 1\n",
                                 current_seed, current_iteration);
  if (::write(STDERR_FILENO, text, static_cast<std::size_t>(size)) < 0) return;
}

void on_signal(int number) {
  say_where();
  constexpr char text[] = "fuzz: the input never ended\n";
  if (number == SIGPROF && ::write(STDERR_FILENO, text, sizeof text - 1) >= 0) ::_exit(1);
  ::signal(number, SIG_DFL);
  ::raise(number);
}

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<Bytes> corpus() {
  std::vector<Bytes> result = fuzz_seeds();
  std::size_t files = 0;
  for (const std::string& path : fuzz_files()) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    if (error || size > largest_file || files == most_files) continue;
    result.push_back(read_file(path));
    ++files;
  }
  return result;
}

std::size_t below(Random& random, std::size_t limit) {
  return limit == 0 ? 0 : random() % limit;
}

// Headers lie at the begin of files, tables of them often at the end.
std::size_t position(Random& random, const Bytes& input) {
  switch (random() % 4) {
    case 0:
      return below(random, std::min<std::size_t>(input.size(), 1024));
    case 1:
      return input.size() - 1 - below(random, std::min<std::size_t>(input.size(), 4096));
    default:
      return below(random, input.size());
  }
}

std::uint64_t odd_number(Random& random, const Bytes& input) {
  const std::uint64_t numbers[] = {0,
                                   1,
                                   7,
                                   8,
                                   0x7f,
                                   0x80,
                                   0xff,
                                   0x7fff,
                                   0xffff,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   0x7fffffffffffffff,
                                   0x8000000000000000,
                                   ~std::uint64_t{0},
                                   input.size(),
                                   input.size() - 1,
                                   random() % (2 * input.size() + 1),
                                   std::uint64_t{0} - random() % 4096,
                                   std::uint64_t{1} << random() % 64,
                                   random()};
  return numbers[random() % std::size(numbers)];
}

void mutate_once(Bytes& input, Random& random, const std::vector<Bytes>& seeds) {
  if (input.empty()) input.resize(1 + random() % 64);
  const std::size_t at = position(random, input);
  const std::size_t left = input.size() - at;
  const auto begin = input.begin() + static_cast<std::ptrdiff_t>(at);
  switch (random() % 10) {
    case 0:
      input[at] ^= static_cast<std::byte>(1u << random() % 8);
      return;
    case 1:
      input[at] = static_cast<std::byte>(random());
      return;
    case 2:
    case 3: {
      const std::uint64_t number = odd_number(random, input);
      const std::size_t size = std::size_t{1} << random() % 4;
      const std::size_t aligned = at / size * size;
      std::memcpy(&input[aligned], &number, std::min(size, input.size() - aligned));
      return;
    }
    case 4: {
      std::uint64_t number = 0;
      const std::size_t size = std::min<std::size_t>(std::size_t{1} << random() % 4, left);
      std::memcpy(&number, &input[at], size);
      number += random() % 64 - 32;
      std::memcpy(&input[at], &number, size);
      return;
    }
    case 5: {  // a piece of it elsewhere
      const std::size_t from = position(random, input);
      const std::size_t size = std::min({std::size_t{1} << random() % 9, left, input.size() - from});
      std::memmove(&input[at], &input[from], size);
      return;
    }
    case 6: {
      const std::size_t size = std::min<std::size_t>(1 + random() % 64, left);
      std::fill_n(begin, size, static_cast<std::byte>(random() % 2 == 0 ? 0 : 0xff));
      return;
    }
    case 7: {  // a piece of another input
      const Bytes& other = seeds[random() % seeds.size()];
      const std::size_t from = below(random, other.size());
      const std::size_t size = std::min({std::size_t{1} << random() % 10, left, other.size() - from});
      std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(from), size, begin);
      return;
    }
    case 8:
      if (random() % 8 == 0) input.resize(at);
      return;
    default: {
      if (random() % 8 != 0) return;
      Bytes more(std::size_t{1} << random() % 8);
      for (std::byte& byte : more) byte = static_cast<std::byte>(random());
      input.insert(begin, more.begin(), more.end());
      return;
    }
  }
}

void run(const Bytes& input) {
  const double begin = processor_seconds();
  itimerval timer{};
  timer.it_value.tv_sec = patience;
  ::setitimer(ITIMER_PROF, &timer, nullptr);
  const std::size_t held = live;
  live_peak = live;
  allocated = 0;
  fuzz_one(input);
  promise(processor_seconds() - begin < most_seconds, "an input took too long");
  promise(live_peak - held < most_live, "an input used too much memory at once");
  promise(allocated < most_allocated, "an input used too much memory");
}

}  // namespace

// Every form in use, since those of a sanitizer would not know these blocks. The size lies before the block.
namespace {

constexpr std::size_t block_head = alignof(std::max_align_t);

void* take(std::size_t size) {
  auto* block = static_cast<unsigned char*>(std::malloc(size + block_head));
  if (block == nullptr) return nullptr;
  std::memcpy(block, &size, sizeof size);
  live += size;
  live_peak = std::max(live, live_peak);
  allocated += size;
  return block + block_head;
}

void* take_or_throw(std::size_t size) {
  void* const block = take(size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void give(void* pointer) {
  if (pointer == nullptr) return;
  auto* block = static_cast<unsigned char*>(pointer) - block_head;
  std::size_t size = 0;
  std::memcpy(&size, block, sizeof size);
  live -= size;
  std::free(block);
}

}  // namespace

void* operator new(std::size_t size) {
  return take_or_throw(size);
}
void* operator new[](std::size_t size) {
  return take_or_throw(size);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return take(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return take(size);
}
void operator delete(void* pointer) noexcept {
  give(pointer);
}
void operator delete[](void* pointer) noexcept {
  give(pointer);
}
void operator delete(void* pointer, std::size_t) noexcept {
  give(pointer);
}
void operator delete[](void* pointer, std::size_t) noexcept {
  give(pointer);
}
void operator delete(void* pointer, const std::nothrow_t&) noexcept {
  give(pointer);
}
void operator delete[](void* pointer, const std::nothrow_t&) noexcept {
  give(pointer);
}

int main(int argc, char** argv) {
  unsigned long long iterations = 1000;
  unsigned long long first = 0;
  std::string file;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--iterations") {
      iterations = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (option == "--seed") {
      current_seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (option == "--first") {
      first = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (option == "--input") {
      file = argv[i + 1];
    } else {
      std::fprintf(stderr, "usage: %s [--iterations N] [--seed S] [--first I] [--input FILE]\n", argv[0]);
      return 2;
    }
  }
  for (const int number : {SIGPROF, SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) {
#if defined(__SANITIZE_ADDRESS__)
    if (number == SIGSEGV || number == SIGBUS || number == SIGFPE) continue;
#endif
    ::signal(number, on_signal);
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(say_where);
#endif
  if (!file.empty()) {
    run(read_file(file));
    return 0;
  }
  const std::vector<Bytes> seeds = corpus();
  double slowest = 0;
  std::size_t largest = 0;
  const double begin = processor_seconds();
  for (current_iteration = first; current_iteration < first + iterations; ++current_iteration) {
    Random random(current_seed * 0x9e3779b97f4a7c15 + current_iteration);
    Bytes input = seeds[random() % seeds.size()];
    // The first ones as they are.
    if (current_iteration < seeds.size()) {
      input = seeds[current_iteration];
    } else {
      for (std::size_t count = 1 + random() % (1 + random() % 32); count != 0; --count)
        mutate_once(input, random, seeds);
    }
    const double before = processor_seconds();
    const std::size_t held = live;
    run(input);
    slowest = std::max(slowest, processor_seconds() - before);
    largest = std::max(largest, live_peak - held);
  }
  std::printf("%s: %llu inputs from %zu seeds, %.1f s; at most %.2f s and %.1f MiB an input\n",
              std::filesystem::path(argv[0]).filename().c_str(), iterations, seeds.size(),
              processor_seconds() - begin, slowest, static_cast<double>(largest) / (1 << 20));
  return 0;
}
