#include <doctest/doctest.h>
#include <linux/perf_event.h>

#include <cstring>
#include <vector>

#include "registers/perf_ring.hpp"

using namespace hangtrace::registers;

namespace {

using Words = std::vector<std::uint64_t>;

std::vector<std::byte> bytes_of(const Words& words) {
  std::vector<std::byte> bytes(8 * words.size());
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

// identifier, abi, two registers, size of the stack, the stack, how much of it is real
const Words sample_words{77, PERF_SAMPLE_REGS_ABI_64, 1001, 1002, 16, 0xaaaa, 0xbbbb, 8};

std::uint64_t header(std::uint32_t type, std::size_t body_size) {
  const perf_event_header header{type, 0, static_cast<std::uint16_t>(sizeof header + body_size)};
  std::uint64_t word = 0;
  std::memcpy(&word, &header, sizeof word);
  return word;
}

Words record(std::uint32_t type, const Words& body) {
  Words words{header(type, 8 * body.size())};
  words.insert(words.end(), body.begin(), body.end());
  return words;
}

struct Ring {
  std::vector<std::byte> data = std::vector<std::byte>(256);
  std::uint64_t tail;
  std::uint64_t head;
  explicit Ring(std::uint64_t start) : tail(start), head(start) {}
  void add(const Words& words) {
    for (const std::byte byte : bytes_of(words)) data[head++ % data.size()] = byte;
  }
  Drained drain(std::vector<Words>& samples) const {
    return hangtrace::registers::drain(data, tail, head, 2, [&](const PerfSample& sample) {
      samples.push_back(sample.values);
      CHECK(sample.identifier == 77);
      CHECK(sample.stack.size() == 8);
    });
  }
};

}  // namespace

TEST_CASE("samples are read wherever they begin in the ring") {
  for (std::uint64_t start = 0; start < 512; start += 8) {
    Ring ring(start);
    ring.add(record(PERF_RECORD_SAMPLE, sample_words));
    ring.add(record(PERF_RECORD_LOST, {5, 3}));
    ring.add(record(PERF_RECORD_THROTTLE, {1, 2, 3}));
    ring.add(record(PERF_RECORD_SAMPLE, sample_words));
    std::vector<Words> samples;
    const Drained drained = ring.drain(samples);
    CHECK(samples == std::vector<Words>{{1001, 1002}, {1001, 1002}});
    CHECK(drained.tail == ring.head);
    CHECK(drained.lost == 3);
    CHECK(drained.bad == 0);
  }
}

TEST_CASE("positions that have passed the largest number still have a distance") {
  Ring ring(~std::uint64_t{0} - 15);
  ring.add(record(PERF_RECORD_SAMPLE, sample_words));
  std::vector<Words> samples;
  CHECK(ring.drain(samples).bad == 0);
  CHECK(samples.size() == 1);
}

TEST_CASE("a record that is not as long as it says ends the reading") {
  for (const std::uint64_t word :
       {header(PERF_RECORD_SAMPLE, 0) & std::uint64_t{0xffffffff}, header(PERF_RECORD_SAMPLE, 4096),
        std::uint64_t{PERF_RECORD_SAMPLE} | std::uint64_t{4} << 48}) {
    Ring ring(0);
    ring.add({word, 1, 2, 3});
    ring.add(record(PERF_RECORD_SAMPLE, sample_words));
    std::vector<Words> samples;
    const Drained drained = ring.drain(samples);
    CHECK(samples.empty());
    CHECK(drained.bad == 1);
    CHECK(drained.tail == ring.head);
  }
}

TEST_CASE("positions that do not fit the ring give nothing") {
  Ring ring(0);
  ring.add(record(PERF_RECORD_SAMPLE, sample_words));
  std::vector<Words> samples;
  ring.tail = ring.head + 8;
  CHECK(ring.drain(samples).tail == ring.head);
  ring.tail = ring.head - 1024;
  CHECK(ring.drain(samples).tail == ring.head);
  ring.data.resize(200);
  ring.tail = 0;
  ring.drain(samples);
  CHECK(samples.empty());
}

TEST_CASE("a sample that does not hold what it says is none") {
  PerfSample sample;
  const auto whole = bytes_of(sample_words);
  REQUIRE(parse_sample(whole, 2, sample));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK_FALSE(parse_sample(std::span(whole).first(size), 2, sample));
  }
  const auto changed = [](std::size_t at, std::uint64_t value) {
    Words words = sample_words;
    words[at] = value;
    return bytes_of(words);
  };
  CHECK_FALSE(parse_sample(changed(1, PERF_SAMPLE_REGS_ABI_32), 2, sample));
  CHECK_FALSE(parse_sample(changed(1, PERF_SAMPLE_REGS_ABI_NONE), 2, sample));
  CHECK_FALSE(parse_sample(changed(4, 24), 2, sample));
  CHECK_FALSE(parse_sample(changed(4, ~0ULL), 2, sample));
  CHECK_FALSE(parse_sample(changed(7, 17), 2, sample));
  // A thread without a stack that could be read: no bytes, and no word that counts them.
  CHECK(parse_sample(bytes_of({77, PERF_SAMPLE_REGS_ABI_64, 1, 2, 0}), 2, sample));
  CHECK(sample.stack.empty());
}
