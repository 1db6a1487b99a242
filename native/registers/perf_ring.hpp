#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace hangtrace::registers {

/// One PERF_RECORD_SAMPLE with PERF_SAMPLE_IDENTIFIER, REGS_USER and STACK_USER.
struct PerfSample {
  std::uint64_t identifier = 0;
  std::vector<std::uint64_t> values;  // of the registers, in the order of the bits of the mask
  std::span<const std::byte> stack;   // from the stack pointer on, as much as could be read
};

/// Decodes a record without its header; false if it is no sample of 64-bit user code, or does not hold what
/// it says (perf_event_open(2), "PERF_RECORD_SAMPLE"). `sample.stack` refers to `record`.
bool parse_sample(std::span<const std::byte> record, std::size_t register_count, PerfSample& sample);

struct Drained {
  std::uint64_t tail = 0;  // up to where the ring was read
  std::uint64_t lost = 0;  // samples for which there was no room
  std::size_t bad = 0;     // samples that could not be used
};

/// Reads the records between `tail` and `head` of a ring, whose size is a power of two. Positions only grow;
/// a record may wrap around the end. What is not consistent ends the reading: the tail is then the head.
Drained drain(std::span<const std::byte> ring, std::uint64_t tail, std::uint64_t head,
              std::size_t register_count, const std::function<void(const PerfSample&)>& on_sample);

}  // namespace hangtrace::registers
