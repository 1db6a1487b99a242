#include "registers/perf_ring.hpp"

#include <linux/perf_event.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

namespace hangtrace::registers {

namespace {

// Reads forward; what is not there ends all reading.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::optional<std::uint64_t> word() {
    const auto taken = take(sizeof(std::uint64_t));
    if (!taken) {
      return std::nullopt;
    }
    std::uint64_t value = 0;
    std::memcpy(&value, taken->data(), sizeof value);
    return value;
  }
  std::optional<std::span<const std::byte>> take(std::uint64_t size) {
    if (size > bytes_.size()) {
      return std::nullopt;
    }
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }

 private:
  std::span<const std::byte> bytes_;
};

void copy(std::span<const std::byte> ring, std::uint64_t from, std::span<std::byte> into) {
  const std::size_t at = from & (ring.size() - 1);
  const std::size_t first = std::min(into.size(), ring.size() - at);
  std::memcpy(into.data(), ring.data() + at, first);
  std::memcpy(into.data() + first, ring.data(), into.size() - first);
}

}  // namespace

bool parse_sample(std::span<const std::byte> record, std::size_t register_count, PerfSample& sample) {
  Cursor cursor(record);
  const auto identifier = cursor.word();
  const auto abi = cursor.word();
  if (!identifier || abi != PERF_SAMPLE_REGS_ABI_64) {
    return false;
  }
  sample.identifier = *identifier;
  sample.values.clear();
  for (std::size_t i = 0; i < register_count; ++i) {
    const auto value = cursor.word();
    if (!value) {
      return false;
    }
    sample.values.push_back(*value);
  }
  const auto size = cursor.word();
  const auto stack = size ? cursor.take(*size) : std::nullopt;
  if (!stack) {
    return false;
  }
  sample.stack = {};
  if (*size != 0) {
    const auto filled = cursor.word();
    if (!filled || *filled > *size) {
      return false;
    }
    sample.stack = stack->first(*filled);
  }
  return true;
}

Drained drain(std::span<const std::byte> ring, std::uint64_t tail, std::uint64_t head,
              std::size_t register_count, const std::function<void(const PerfSample&)>& on_sample) {
  Drained drained{.tail = head};
  if (!std::has_single_bit(ring.size()) || head - tail > ring.size()) {
    return drained;
  }
  std::vector<std::byte> record;
  PerfSample sample;
  while (head - tail >= sizeof(perf_event_header)) {
    perf_event_header header{};
    copy(ring, tail, std::as_writable_bytes(std::span(&header, 1)));
    if (header.size < sizeof header || header.size > head - tail) {
      ++drained.bad;
      return drained;
    }
    record.resize(header.size - sizeof header);
    copy(ring, tail + sizeof header, record);
    tail += header.size;
    if (header.type == PERF_RECORD_SAMPLE) {
      if (parse_sample(record, register_count, sample)) {
        on_sample(sample);
      } else {
        ++drained.bad;
      }
    } else if (header.type == PERF_RECORD_LOST && record.size() >= 2 * sizeof(std::uint64_t)) {
      std::uint64_t lost = 0;  // after the event's id
      std::memcpy(&lost, record.data() + sizeof lost, sizeof lost);
      drained.lost += lost;
    }
  }
  return drained;
}

}  // namespace hangtrace::registers
