#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "registers/status.hpp"
#include "unwind/registers.hpp"

namespace hangtrace::registers {

struct SamplerLimits {
  std::chrono::microseconds deadline{25'000};  // for all threads together
  std::chrono::microseconds first{50};         // of the thread's own time on a CPU, up to its first sample
  std::chrono::microseconds period{1'000};     // the same between two samples
  std::chrono::microseconds check{4'000};      // how often it is looked who has fallen asleep meanwhile
  std::size_t samples = 5;                     // of each thread; then it is left alone
  std::size_t threads = 128;                   // a descriptor and a ring of memory each
};

/// Samples of threads that run, taken by the kernel's timer on the CPU they are on: nobody is stopped. One
/// begin() and one finish() for all threads of a look; everything is closed when it is destroyed.
class PerfSampler {
 public:
  /// Called in finish(), in the order in which the samples of a thread were taken. `thread` is an index of
  /// `tids`.
  using OnSample =
      std::function<void(std::size_t thread, const unwind::Registers&, std::span<const std::byte> stack)>;

  explicit PerfSampler(SamplerLimits limits = {});
  ~PerfSampler();
  PerfSampler(const PerfSampler&) = delete;
  PerfSampler& operator=(const PerfSampler&) = delete;

  /// Starts sampling these threads, the first ones first if there are too many.
  void begin(std::span<const int> tids);
  /// Waits until all have been sampled often enough or have fallen asleep, at most up to the deadline counted
  /// from begin().
  void finish(const OnSample& on_sample, const std::function<bool(std::size_t thread)>& still_runs);

  const RungStatus& status() const { return status_; }

 private:
  struct Event;

  bool open(int tid, std::size_t thread);
  void drain(Event& event, const OnSample& on_sample);

  SamplerLimits limits_;
  RungStatus status_;
  bool exclude_kernel_ = false;
  std::chrono::steady_clock::time_point until_;
  std::vector<std::unique_ptr<Event>> events_;
};

}  // namespace hangtrace::registers
