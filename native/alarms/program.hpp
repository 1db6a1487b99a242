#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bpf/btf.hpp"

namespace hangtrace::alarms {

/// What the program writes for each task.
struct AlarmRecord {
  std::uint32_t process = 0;  // as the first pid namespace counts
  std::uint32_t thread = 0;
  std::int64_t due_ns = 0;  // signal_struct.real_timer.node.expires, on CLOCK_MONOTONIC
  std::uint64_t set = 0;    // hrtimer.is_queued or .state: 0 if it is not
};

/// Where the fields of kernel structs are that the program reads.
struct AlarmOffsets {
  std::uint32_t process = 0;  // task_struct.tgid
  std::uint32_t thread = 0;   // task_struct.pid
  std::uint32_t signal = 0;   // task_struct.signal
  std::uint32_t due = 0;      // from signal_struct
  std::uint32_t state = 0;
};

/// nullopt if the kernel has no such fields, or they are too far from the start for one instruction.
std::optional<AlarmOffsets> alarm_offsets(const bpf::Btf& btf);

/// An iter/task program that writes an AlarmRecord for each task it is called with.
std::vector<bpf_insn> alarm_program(const AlarmOffsets& offsets);

}  // namespace hangtrace::alarms
