#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace hangtrace::capture {

/// CPUs that the calling thread may run on and that nobody else wants just now, itself included; at least
/// one.
std::size_t free_cpus();

/// As long as it lives, any thread of the usual policies that wakes up takes the CPU from the calling one at
/// once, where the kernel can be told so (6.12 and later).
class GivesWay {
 public:
  GivesWay();
  ~GivesWay();
  GivesWay(const GivesWay&) = delete;
  GivesWay& operator=(const GivesWay&) = delete;

 private:
  std::uint64_t slice_before_ = 0;
};

/// Lets this process open so many descriptors more without growing its table of them: as long as it has
/// several threads, each growth waits until all CPUs have been through the scheduler.
void expect_descriptors(std::size_t count);

/// Calls begin(i) and then work(i) for each i below `count`, by up to `workers` threads of which the caller
/// is one; the others run only where nobody else would (SCHED_IDLE). Calls of begin() come in order and one
/// at a time, each from the thread that goes on to work(i). All has returned, and no thread is left, when
/// this does; what one of them threw passes through then, and what had not begun is left out.
void share_out(std::size_t count, std::size_t workers, const std::function<void(std::size_t)>& begin,
               const std::function<void(std::size_t)>& work);

}  // namespace hangtrace::capture
