#pragma once

#include <span>
#include <vector>

#include "capture/look.hpp"
#include "registers/perf_sampler.hpp"
#include "registers/task_registers.hpp"
#include "unwind/naming.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::capture {

/// Samples all running threads of a look, from its construction on.
class RunningThreads {
 public:
  explicit RunningThreads(std::span<Look> looks);
  /// Waits for the samples, at most up to the sampler's deadline, and unwinds them. The last complete one
  /// becomes the thread's stack. It is of a moment of its own, as the thread being marked as moved says.
  void collect(unwind::UnwindCache& cache);
  /// Threads without a sample, because others have the CPUs, show their registers as those that sleep do.
  void add_preempted(registers::TaskRegisters& tasks, unwind::UnwindCache& cache);
  /// Says of each process what became of the samples.
  void report();

 private:
  struct Target {
    Look* look;
    std::size_t thread;
  };

  registers::RungStatus status_of(const Look& look) const;
  void show(const Target& target, StackFrom from);

  std::vector<Target> targets_;
  registers::PerfSampler sampler_;
};

/// The innermost frames of all samples of one process, each as a stack of its own.
struct SampledLeaves {
  Look* look = nullptr;
  std::vector<std::size_t> threads;  // whose sample it is
  std::vector<unwind::Stack> stacks;
};

std::vector<SampledLeaves> leaves_of(std::span<Look> looks);
/// Says what the samples of each thread have in common. `names` are those of `sampled.stacks`.
void describe_samples(const SampledLeaves& sampled, std::span<const std::vector<unwind::FrameName>> names);

}  // namespace hangtrace::capture
