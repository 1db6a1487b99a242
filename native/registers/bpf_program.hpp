#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bpf/btf.hpp"
#include "registers/machine.hpp"

namespace hangtrace::registers {

/// What the program writes for each task.
struct TaskRecord {
  std::uint32_t tid = 0;     // as the first pid namespace counts
  std::uint32_t on_cpu = 0;  // whether it was executing at that moment: then its registers are old
  std::uint64_t run_ns = 0;  // se.sum_exec_runtime, the first word of schedstat
  std::array<std::uint64_t, pt_regs_words> words{};
};

/// Where the fields of kernel structs are that the program reads.
struct TaskOffsets {
  std::uint32_t pid = 0;     // task_struct.pid
  std::uint32_t run_ns = 0;  // task_struct.se.sum_exec_runtime
  std::uint32_t on_cpu = 0;  // task_struct.on_cpu
  std::uint8_t on_cpu_width = BPF_W;
};

/// nullopt if the kernel has no such fields, or they are too far from the start for one instruction.
std::optional<TaskOffsets> task_offsets(const bpf::Btf& btf);

/// An iter/task program that writes a TaskRecord for each task it is called with.
std::vector<bpf_insn> task_program(const TaskOffsets& offsets);

}  // namespace hangtrace::registers
