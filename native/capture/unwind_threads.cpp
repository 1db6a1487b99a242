#include <sys/syscall.h>

#include <algorithm>
#include <numeric>

#include "capture/look.hpp"

namespace hangtrace::capture {

namespace {

bool waits_in_call(const Thread& thread) {
  return thread.syscall.value_or(-1) >= 0 && *thread.syscall != SYS_restart_syscall;
}

void unwind_thread(Look& look, std::size_t i, const unwind::Unwinder& unwinder) {
  Thread& thread = look.sampled.process.threads[i];
  if (const KeptStack* const kept = look.known->kept_stack(thread)) {
    show_stack(look, i, kept->stack, kept->from);
    return;
  }
  const auto start = unwind::Registers::from_pc_sp(*thread.program_counter, *thread.stack_pointer);
  const unwind::StackCopy copy{*thread.stack_pointer, look.stacks[i]};
  unwind::Stack stack = unwinder.unwind(start, copy);
  // A function may keep its return address in a register while it calls the kernel, as vfork does.
  if (stack.frames.size() == 1 && !stack.complete() && waits_in_call(thread)) {
    const auto known =
        unwinder.in_system_call(*thread.program_counter, *thread.stack_pointer, thread.arguments);
    unwind::Stack with_arguments = unwinder.unwind(known, copy);
    if (is_better(with_arguments, stack)) stack = std::move(with_arguments);
  }
  if (stack.frames.empty()) {
    show_stack(look, i, std::move(stack), StackFrom::none);
    return;
  }
  const bool repaired = std::ranges::any_of(stack.frames, [](const unwind::Frame& frame) {
    return frame.found_by == unwind::FoundBy::prologue || frame.found_by == unwind::FoundBy::scan;
  });
  // What lies beyond the copy was read later than the rest.
  if (!thread.moved && stack.beyond_copy) {
    thread.moved = has_run(look.sampled, thread);
  }
  show_stack(look, i, std::move(stack), repaired ? StackFrom::repaired : StackFrom::pc_sp);
}

std::vector<std::size_t> main_first(const Process& process) {
  std::vector<std::size_t> order(process.threads.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_partition(order, [&](std::size_t i) { return process.threads[i].tid == process.pid; });
  return order;
}

}  // namespace

void unwind_threads(Look& look, unwind::UnwindCache& cache, const Options& options) {
  Process& process = look.sampled.process;
  std::vector<Thread>& threads = process.threads;
  const unwind::Unwinder unwinder(look.known->modules(), cache);
  look.unwound.resize(threads.size());
  for (const std::size_t i : main_first(process)) {
    if (!threads[i].stack_pointer || !threads[i].program_counter) {
      continue;
    }
    if (threads[i].tid != process.pid && options.out_of_time()) {
      process.error = Error::no_time;
      threads[i].stack_problem = no_time_left;
      continue;
    }
    unwind_thread(look, i, unwinder);
    const auto kept = look.stacks[i].first(std::min(look.stacks[i].size(), lock_frames_bytes));
    if (look.calls[i] && !kept.empty()) {
      look.copies->add(*threads[i].stack_pointer, {kept.begin(), kept.end()});
    }
  }
  look.stacks.clear();
  look.stack_bytes.reset();
}

}  // namespace hangtrace::capture
