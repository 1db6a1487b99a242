#include "alarms/program.hpp"

#include <array>
#include <cstddef>
#include <string_view>

#include "bpf/programs.hpp"

namespace hangtrace::alarms {

namespace {

// Registers that calls keep.
constexpr std::uint8_t context = BPF_REG_6;
constexpr std::uint8_t task = BPF_REG_7;
constexpr std::uint8_t shared = BPF_REG_8;

constexpr std::int16_t at(std::size_t field) {
  return bpf::at<AlarmRecord>(field);
}

}  // namespace

std::optional<AlarmOffsets> alarm_offsets(const bpf::Btf& btf) {
  const auto of_thread = btf.find(bpf::BtfKind::structure, "task_struct");
  const auto of_process = btf.find(bpf::BtfKind::structure, "signal_struct");
  if (!of_thread || !of_process) {
    return std::nullopt;
  }
  constexpr std::array<std::string_view, 3> due_path{"real_timer", "node", "expires"};
  // Linux 7.3 has the bool `is_queued` (include/linux/hrtimer_types.h); 6.18 and older have the number
  // `state`, 0 if the timer is not set (include/linux/hrtimer.h, HRTIMER_STATE_INACTIVE). Both are a byte.
  constexpr std::array<std::string_view, 2> queued_path{"real_timer", "is_queued"};
  constexpr std::array<std::string_view, 2> state_path{"real_timer", "state"};
  const auto process = btf.member(*of_thread, "tgid");
  const auto thread = btf.member(*of_thread, "pid");
  const auto signal = btf.member(*of_thread, "signal");
  const auto due = btf.member(*of_process, due_path);
  auto state = btf.member(*of_process, queued_path);
  if (!state) {
    state = btf.member(*of_process, state_path);
  }
  if (!bpf::all_fit({process, thread, signal, due, state})) {
    return std::nullopt;
  }
  return AlarmOffsets{process->offset, thread->offset, signal->offset, due->offset, state->offset};
}

std::vector<bpf_insn> alarm_program(const AlarmOffsets& offsets) {
  using bpf::near;
  bpf::Assembler code;
  bpf::begin_task(code, context, task);
  code.load(BPF_W, BPF_REG_1, task, near(offsets.process));
  code.store(BPF_W, at(offsetof(AlarmRecord, process)), BPF_REG_1);
  code.load(BPF_W, BPF_REG_1, task, near(offsets.thread));
  code.store(BPF_W, at(offsetof(AlarmRecord, thread)), BPF_REG_1);
  code.load(BPF_DW, shared, task, near(offsets.signal));
  code.exit_if(BPF_JEQ, shared, 0);
  code.load(BPF_DW, BPF_REG_1, shared, near(offsets.due));
  code.store(BPF_DW, at(offsetof(AlarmRecord, due_ns)), BPF_REG_1);
  code.load(BPF_B, BPF_REG_1, shared, near(offsets.state));
  code.store(BPF_DW, at(offsetof(AlarmRecord, set)), BPF_REG_1);
  return bpf::write<AlarmRecord>(code, context);
}

}  // namespace hangtrace::alarms
