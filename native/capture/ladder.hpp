#pragma once

#include <span>

#include "capture/look.hpp"
#include "registers/task_registers.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::capture {

/// The rungs above PC, SP and repair: other ways to a thread's registers, tried only for threads that need
/// them. Keeps what is loaded once.
class Ladder {
 public:
  void climb(std::span<Look> looks, unwind::UnwindCache& cache, const Options& options);

 private:
  void ask_kernel(std::span<Look> looks, unwind::UnwindCache& cache);

  registers::TaskRegisters tasks_;
};

}  // namespace hangtrace::capture
