#pragma once

#include <vector>

#include "capture/types.hpp"

namespace hangtrace::capture {

/// A Python frame with the mark that C code entered the interpreter for it.
struct PythonFrame {
  Frame frame;
  bool entry = false;
};

/// Puts Python frames in place of the interpreter's own. Every native eval frame runs the Python frames from
/// the one it is at up to the next entry, so both stacks fit together if there are as many eval frames as
/// entries. The trampolines of CPython's own perf support are left out of a merged stack. False, and nothing
/// changed, if there are not. Both innermost first.
bool merge(std::vector<Frame>& native, const std::vector<PythonFrame>& python);

}  // namespace hangtrace::capture
