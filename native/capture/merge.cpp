#include "capture/merge.hpp"

#include <algorithm>

namespace hangtrace::capture {

namespace {

// The evaluation loop: one function, with a cold part.
bool is_loop(const Frame& frame) {
  return frame.function.starts_with("_PyEval_EvalFrameDefault");
}

// From 3.14 on each instruction may be a function of its own, which goes on to the next one by a tail call:
// the one that runs is called by the loop's function, which keeps a frame for what it has on the stack.
bool is_instruction(const Frame& frame) {
  return frame.function.starts_with("_TAIL_CALL_");
}

// Which frames stand for one run of the evaluation loop each: the loop itself, or an instruction without it.
std::vector<bool> mark_evals(const std::vector<Frame>& native) {
  std::vector<bool> evals(native.size());
  for (std::size_t i = 0; i < native.size(); ++i) {
    const bool within_loop = i + 1 < native.size() && is_loop(native[i + 1]);
    evals[i] = is_loop(native[i]) || (is_instruction(native[i]) && !within_loop);
  }
  return evals;
}

// CPython 3.12 and later, run with -X perf, calls each Python function through a piece of code of its own,
// named "py::function:file". It stands for the frame that the interpreter shows already.
bool is_perf_trampoline(const Frame& frame) {
  return frame.module == jit_module && frame.function.starts_with("py::");
}

}  // namespace

bool merge(std::vector<Frame>& native, const std::vector<PythonFrame>& python) {
  const std::vector<bool> is_eval = mark_evals(native);
  const auto evals = std::ranges::count(is_eval, true);
  const auto entries = std::ranges::count_if(python, &PythonFrame::entry);
  if (python.empty() || evals != entries || !python.back().entry) {
    return false;
  }
  std::vector<Frame> merged;
  merged.reserve(native.size() + python.size());
  auto next = python.begin();
  for (std::size_t i = 0; i < native.size(); ++i) {
    if (!is_eval[i]) {
      if (!is_instruction(native[i]) && !is_perf_trampoline(native[i])) {
        merged.push_back(std::move(native[i]));
      }
      continue;
    }
    while (next != python.end()) {
      merged.push_back(next->frame);
      const bool entry = next->entry;
      ++next;
      if (entry) {
        break;
      }
    }
  }
  native = std::move(merged);
  return true;
}

}  // namespace hangtrace::capture
