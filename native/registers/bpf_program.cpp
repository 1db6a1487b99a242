#include "registers/bpf_program.hpp"

#include <array>
#include <cstddef>
#include <string_view>

#include "bpf/assembler.hpp"

namespace hangtrace::registers {

namespace {

// struct bpf_iter__task: meta and task; struct bpf_iter_meta begins with seq.
constexpr std::int16_t context_meta = 0;
constexpr std::int16_t context_task = 8;
constexpr std::int16_t meta_seq = 0;

constexpr std::int16_t record_at = -static_cast<std::int16_t>(sizeof(TaskRecord));  // from the frame pointer

constexpr std::int16_t at(std::size_t field) {
  return static_cast<std::int16_t>(record_at + static_cast<std::int16_t>(field));
}

}  // namespace

std::optional<TaskOffsets> task_offsets(const bpf::Btf& btf) {
  const auto task = btf.find(bpf::BtfKind::structure, "task_struct");
  if (!task) {
    return std::nullopt;
  }
  constexpr std::array<std::string_view, 2> run_path{"se", "sum_exec_runtime"};
  const auto pid = btf.member(*task, "pid");
  const auto run = btf.member(*task, run_path);
  const auto on_cpu = btf.member(*task, "on_cpu");
  if (!pid || !run || !on_cpu || !bpf::fits(pid->offset) || !bpf::fits(run->offset) ||
      !bpf::fits(on_cpu->offset)) {
    return std::nullopt;
  }
  return TaskOffsets{pid->offset, run->offset, on_cpu->offset};
}

std::vector<bpf_insn> task_program(const TaskOffsets& offsets) {
  using bpf::near;
  bpf::Assembler code;
  code.load(BPF_DW, BPF_REG_6, BPF_REG_1, context_meta);
  code.load(BPF_DW, BPF_REG_7, BPF_REG_1, context_task);
  code.exit_if(BPF_JEQ, BPF_REG_7, 0);  // the call after the last task
  code.load(BPF_W, BPF_REG_1, BPF_REG_7, near(offsets.pid));
  code.store(BPF_W, at(offsetof(TaskRecord, tid)), BPF_REG_1);
  code.load(BPF_W, BPF_REG_1, BPF_REG_7, near(offsets.on_cpu));
  code.store(BPF_W, at(offsetof(TaskRecord, on_cpu)), BPF_REG_1);
  code.load(BPF_DW, BPF_REG_1, BPF_REG_7, near(offsets.run_ns));
  code.store(BPF_DW, at(offsetof(TaskRecord, run_ns)), BPF_REG_1);
  code.move(BPF_REG_1, BPF_REG_7);
  code.call(bpf::helper_task_pt_regs);
  code.move(BPF_REG_8, BPF_REG_0);
  for (std::size_t i = 0; i < pt_regs_words; ++i) {
    code.load(BPF_DW, BPF_REG_1, BPF_REG_8, static_cast<std::int16_t>(i * 8));
    code.store(BPF_DW, at(offsetof(TaskRecord, words) + i * 8), BPF_REG_1);
  }
  code.load(BPF_DW, BPF_REG_1, BPF_REG_6, meta_seq);
  code.move(BPF_REG_2, BPF_REG_10);
  code.with_constant(BPF_ADD, BPF_REG_2, record_at);
  code.set(BPF_REG_3, static_cast<std::int32_t>(sizeof(TaskRecord)));
  code.call(bpf::helper_seq_write);
  return code.finish();
}

}  // namespace hangtrace::registers
