#include "capture/merge.hpp"

#include <algorithm>

namespace hangtrace::capture {

namespace {

// The evaluation loop: one function, with a cold part; from 3.14 on possibly a chain of tail calls, of which
// the one that is running stands for all.
bool is_eval_frame(const Frame& frame) {
  return frame.function.starts_with("_PyEval_EvalFrameDefault") || frame.function.starts_with("_TAIL_CALL_");
}

// CPython 3.12 and later, run with -X perf, calls each Python function through a piece of code of its own,
// named "py::function:file". It stands for the frame that the interpreter shows already.
bool is_perf_trampoline(const Frame& frame) {
  return frame.module == jit_module && frame.function.starts_with("py::");
}

}  // namespace

bool merge(std::vector<Frame>& native, const std::vector<PythonFrame>& python) {
  const auto evals = std::ranges::count_if(native, is_eval_frame);
  const auto entries = std::ranges::count_if(python, &PythonFrame::entry);
  if (python.empty() || evals != entries || !python.back().entry) {
    return false;
  }
  std::vector<Frame> merged;
  merged.reserve(native.size() + python.size());
  auto next = python.begin();
  for (Frame& frame : native) {
    if (is_perf_trampoline(frame)) {
      continue;
    }
    if (!is_eval_frame(frame)) {
      merged.push_back(std::move(frame));
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
