#include "alarms/program.hpp"

#include <array>
#include <cstddef>
#include <string_view>

#include "bpf/assembler.hpp"

namespace hangtrace::alarms {

namespace {

// struct bpf_iter__task: meta and task; struct bpf_iter_meta begins with seq.
constexpr std::int16_t context_meta = 0;
constexpr std::int16_t context_task = 8;
constexpr std::int16_t meta_seq = 0;

constexpr std::int16_t at(std::size_t field) {
  return static_cast<std::int16_t>(static_cast<std::int16_t>(field) -
                                   static_cast<std::int16_t>(sizeof(AlarmRecord)));
}

}  // namespace

std::optional<AlarmOffsets> alarm_offsets(const bpf::Btf& btf) {
  const auto task = btf.find(bpf::BtfKind::structure, "task_struct");
  const auto shared = btf.find(bpf::BtfKind::structure, "signal_struct");
  if (!task || !shared) {
    return std::nullopt;
  }
  constexpr std::array<std::string_view, 3> due_path{"real_timer", "node", "expires"};
  constexpr std::array<std::string_view, 2> state_path{"real_timer", "state"};
  const auto process = btf.member(*task, "tgid");
  const auto thread = btf.member(*task, "pid");
  const auto signal = btf.member(*task, "signal");
  const auto due = btf.member(*shared, due_path);
  const auto state = btf.member(*shared, state_path);
  for (const auto& field : {process, thread, signal, due, state}) {
    if (!field || !bpf::fits(field->offset)) {
      return std::nullopt;
    }
  }
  return AlarmOffsets{process->offset, thread->offset, signal->offset, due->offset, state->offset};
}

std::vector<bpf_insn> alarm_program(const AlarmOffsets& offsets) {
  using bpf::near;
  bpf::Assembler code;
  code.load(BPF_DW, BPF_REG_6, BPF_REG_1, context_meta);
  code.load(BPF_DW, BPF_REG_7, BPF_REG_1, context_task);
  code.exit_if(BPF_JEQ, BPF_REG_7, 0);  // the call after the last task
  code.load(BPF_W, BPF_REG_1, BPF_REG_7, near(offsets.process));
  code.store(BPF_W, at(offsetof(AlarmRecord, process)), BPF_REG_1);
  code.load(BPF_W, BPF_REG_1, BPF_REG_7, near(offsets.thread));
  code.store(BPF_W, at(offsetof(AlarmRecord, thread)), BPF_REG_1);
  code.load(BPF_DW, BPF_REG_8, BPF_REG_7, near(offsets.signal));
  code.exit_if(BPF_JEQ, BPF_REG_8, 0);
  code.load(BPF_DW, BPF_REG_1, BPF_REG_8, near(offsets.due));
  code.store(BPF_DW, at(offsetof(AlarmRecord, due_ns)), BPF_REG_1);
  code.load(BPF_B, BPF_REG_1, BPF_REG_8, near(offsets.state));
  code.store(BPF_DW, at(offsetof(AlarmRecord, set)), BPF_REG_1);
  code.load(BPF_DW, BPF_REG_1, BPF_REG_6, meta_seq);
  code.move(BPF_REG_2, BPF_REG_10);
  code.with_constant(BPF_ADD, BPF_REG_2, -static_cast<std::int32_t>(sizeof(AlarmRecord)));
  code.set(BPF_REG_3, static_cast<std::int32_t>(sizeof(AlarmRecord)));
  code.call(bpf::helper_seq_write);
  return code.finish();
}

}  // namespace hangtrace::alarms
