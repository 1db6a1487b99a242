#include "registers/bpf_program.hpp"

#include <array>
#include <cstddef>
#include <limits>
#include <string_view>

namespace hangtrace::registers {

namespace {

// Numbers of enum bpf_func_id, which older headers lack.
constexpr std::int32_t helper_seq_write = 127;
constexpr std::int32_t helper_task_pt_regs = 175;

// struct bpf_iter__task: meta and task; struct bpf_iter_meta begins with seq.
constexpr std::int16_t context_meta = 0;
constexpr std::int16_t context_task = 8;
constexpr std::int16_t meta_seq = 0;

constexpr std::int16_t record_at = -static_cast<std::int16_t>(sizeof(TaskRecord));  // from the frame pointer

class Assembler {
 public:
  void load(std::uint8_t size, std::uint8_t to, std::uint8_t from, std::int16_t offset) {
    add(BPF_LDX | BPF_MEM | size, to, from, offset, 0);
  }
  void store(std::uint8_t size, std::int16_t offset, std::uint8_t from) {
    add(BPF_STX | BPF_MEM | size, BPF_REG_10, from, offset, 0);
  }
  void move(std::uint8_t to, std::uint8_t from) { add(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
  void set(std::uint8_t to, std::int32_t value) { add(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value); }
  void add_constant(std::uint8_t to, std::int32_t value) {
    add(BPF_ALU64 | BPF_ADD | BPF_K, to, 0, 0, value);
  }
  void call(std::int32_t helper) { add(BPF_JMP | BPF_CALL, 0, 0, 0, helper); }
  void exit_if(std::uint8_t comparison, std::uint8_t left, std::int32_t right) {
    exits_.push_back(code_.size());
    add(BPF_JMP | comparison | BPF_K, left, 0, 0, right);
  }
  std::vector<bpf_insn> finish() {
    for (const std::size_t jump : exits_) {
      code_[jump].off = static_cast<std::int16_t>(code_.size() - jump - 1);
    }
    set(BPF_REG_0, 0);
    add(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
    return std::move(code_);
  }

 private:
  void add(unsigned code, std::uint8_t to, std::uint8_t from, std::int16_t offset, std::int32_t value) {
    bpf_insn instruction{};
    instruction.code = static_cast<std::uint8_t>(code);
    instruction.dst_reg = to & 0xf;
    instruction.src_reg = from & 0xf;
    instruction.off = offset;
    instruction.imm = value;
    code_.push_back(instruction);
  }

  std::vector<bpf_insn> code_;
  std::vector<std::size_t> exits_;
};

constexpr std::int16_t at(std::size_t field) {
  return static_cast<std::int16_t>(record_at + static_cast<std::int16_t>(field));
}

bool fits(std::uint32_t offset) {
  return offset <= static_cast<std::uint32_t>(std::numeric_limits<std::int16_t>::max());
}

}  // namespace

std::optional<TaskOffsets> task_offsets(const Btf& btf) {
  const auto task = btf.find(BtfKind::structure, "task_struct");
  if (!task) {
    return std::nullopt;
  }
  constexpr std::array<std::string_view, 2> run_path{"se", "sum_exec_runtime"};
  const auto pid = btf.member(*task, "pid");
  const auto run = btf.member(*task, run_path);
  const auto on_cpu = btf.member(*task, "on_cpu");
  if (!pid || !run || !on_cpu || !fits(pid->offset) || !fits(run->offset) || !fits(on_cpu->offset)) {
    return std::nullopt;
  }
  return TaskOffsets{pid->offset, run->offset, on_cpu->offset};
}

std::vector<bpf_insn> task_program(const TaskOffsets& offsets) {
  const auto near = [](std::uint32_t offset) { return static_cast<std::int16_t>(offset); };
  Assembler code;
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
  code.call(helper_task_pt_regs);
  code.move(BPF_REG_8, BPF_REG_0);
  for (std::size_t i = 0; i < pt_regs_words; ++i) {
    code.load(BPF_DW, BPF_REG_1, BPF_REG_8, static_cast<std::int16_t>(i * 8));
    code.store(BPF_DW, at(offsetof(TaskRecord, words) + i * 8), BPF_REG_1);
  }
  code.load(BPF_DW, BPF_REG_1, BPF_REG_6, meta_seq);
  code.move(BPF_REG_2, BPF_REG_10);
  code.add_constant(BPF_REG_2, record_at);
  code.set(BPF_REG_3, static_cast<std::int32_t>(sizeof(TaskRecord)));
  code.call(helper_seq_write);
  return code.finish();
}

}  // namespace hangtrace::registers
