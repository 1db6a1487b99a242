#include "registers/bpf_program.hpp"

#include <array>
#include <cstddef>
#include <string_view>

#include "bpf/programs.hpp"

namespace hangtrace::registers {

namespace {

// Registers that calls keep.
constexpr std::uint8_t context = BPF_REG_6;
constexpr std::uint8_t task = BPF_REG_7;

constexpr std::int16_t at(std::size_t field) {
  return bpf::at<TaskRecord>(field);
}

}  // namespace

std::optional<TaskOffsets> task_offsets(const bpf::Btf& btf) {
  const auto type = btf.find(bpf::BtfKind::structure, "task_struct");
  if (!type) {
    return std::nullopt;
  }
  constexpr std::array<std::string_view, 2> run_path{"se", "sum_exec_runtime"};
  const auto pid = btf.member(*type, "pid");
  const auto run = btf.member(*type, run_path);
  const auto on_cpu = btf.member(*type, "on_cpu");
  if (!bpf::all_fit({pid, run, on_cpu})) {
    return std::nullopt;
  }
  // An int up to 6.18, an unsigned char in 7.3: the verifier takes no read that goes beyond it.
  const auto width = bpf::width_of(btf.size(on_cpu->type));
  if (!width) {
    return std::nullopt;
  }
  return TaskOffsets{pid->offset, run->offset, on_cpu->offset, *width};
}

std::vector<bpf_insn> task_program(const TaskOffsets& offsets) {
  using bpf::near;
  bpf::Assembler code;
  bpf::begin_task(code, context, task);
  code.load(BPF_W, BPF_REG_1, task, near(offsets.pid));
  code.store(BPF_W, at(offsetof(TaskRecord, tid)), BPF_REG_1);
  code.load(offsets.on_cpu_width, BPF_REG_1, task, near(offsets.on_cpu));
  code.store(BPF_W, at(offsetof(TaskRecord, on_cpu)), BPF_REG_1);
  code.load(BPF_DW, BPF_REG_1, task, near(offsets.run_ns));
  code.store(BPF_DW, at(offsetof(TaskRecord, run_ns)), BPF_REG_1);
  code.move(BPF_REG_1, task);
  code.call(bpf::helper_task_pt_regs);
  code.move(BPF_REG_8, BPF_REG_0);
  for (std::size_t i = 0; i < pt_regs_words; ++i) {
    code.load(BPF_DW, BPF_REG_1, BPF_REG_8, static_cast<std::int16_t>(i * 8));
    code.store(BPF_DW, at(offsetof(TaskRecord, words) + i * 8), BPF_REG_1);
  }
  return bpf::write<TaskRecord>(code, context);
}

}  // namespace hangtrace::registers
