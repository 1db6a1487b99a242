#include "capture/look.hpp"

#include <algorithm>

namespace hangtrace::capture {

const Thread* find_thread(const Process& process, int tid) {
  const auto it = std::ranges::lower_bound(process.threads, tid, {}, &Thread::tid);
  return it != process.threads.end() && it->tid == tid ? &*it : nullptr;
}

bool is_better(const unwind::Stack& stack, const unwind::Stack& than) {
  return stack.complete() || (!than.complete() && stack.frames.size() >= than.frames.size());
}

void show_stack(Look& look, std::size_t i, unwind::Stack stack, StackFrom from) {
  Thread& thread = look.sampled.process.threads[i];
  thread.stack_from = from;
  thread.complete = stack.complete();
  thread.stack_problem = unwind::describe(stack.end);
  look.unwound[i] = std::move(stack);
}

}  // namespace hangtrace::capture
