#pragma once

#include <span>

#include "capture/look.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::capture {

/// Stops, one after the other and each for some microseconds, the threads of these processes whose stack is
/// still incomplete, and unwinds them from all of their registers. Threads that would notice are left alone.
void stop_for_stacks(std::span<Look> looks, std::span<const int> pids, unwind::UnwindCache& cache);

}  // namespace hangtrace::capture
