#include "capture/ladder.hpp"

#include <algorithm>
#include <vector>

#include "capture/running.hpp"
#include "capture/stopping.hpp"

namespace hangtrace::capture {

namespace {

constexpr const char* bpf_source = "ebpf registers";

bool sleeps(const Thread& thread) {
  return thread.stack_pointer && thread.program_counter && !thread.running && !thread.moved;
}

bool lacks_frames(const Thread& thread) {
  return sleeps(thread) && !thread.complete;
}

bool wants_registers(const Thread& thread) {
  return lacks_frames(thread) || (sleeps(thread) && thread.stack_from == StackFrom::repaired);
}

// All of a record that can be checked says that the thread has not run since its PC and SP were read.
bool same_moment(const registers::TaskRecord& record, const Thread& thread) {
  return record.words[registers::pt_regs_rip] == thread.program_counter &&
         record.words[registers::pt_regs_rsp] == thread.stack_pointer && record.run_ns == thread.run_ns;
}

void unwind_again(Look& look, const std::unordered_map<int, registers::TaskRecord>& records,
                  unwind::UnwindCache& cache) {
  const unwind::Unwinder unwinder(look.known->modules(), cache);
  const std::vector<Thread>& threads = look.sampled.process.threads;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const Thread& thread = threads[i];
    const auto record = records.find(thread.tid);
    if (record == records.end() || !wants_registers(thread) || !same_moment(record->second, thread)) {
      continue;
    }
    unwind::Registers registers;
    if (!registers::from_pt_regs(record->second.words, registers)) {
      continue;
    }
    unwind::Stack stack = unwinder.unwind(registers, {});
    // The stack was read now: it goes with the registers, and with all that was read before, only if the
    // thread has slept through.
    if (!is_better(stack, look.unwound[i]) || has_run(look.sampled, thread)) {
      continue;
    }
    show_stack(look, i, std::move(stack), StackFrom::bpf);
  }
}

void leave_running(std::span<Look> looks) {
  for (Look& look : looks) {
    for (Thread& thread : look.sampled.process.threads) {
      if (look.known && thread.running) {
        thread.stack_problem = no_time_left;
        look.sampled.process.error = Error::no_time;
      }
    }
  }
}

}  // namespace

void Ladder::climb(std::span<Look> looks, unwind::UnwindCache& cache, const Options& options) {
  if (options.out_of_time()) {
    leave_running(looks);
    return;
  }
  // Sampled while the others are looked at.
  RunningThreads running(options.running ? looks : std::span<Look>{});
  if (options.bpf) {
    ask_kernel(looks, cache);
  }
  running.collect(cache);
  if (options.bpf) {
    running.add_preempted(tasks_, cache);
  }
  running.report();
  if (!options.stop.empty() && !options.out_of_time()) {
    stop_for_stacks(looks, options.stop, cache);
  }
}

void Ladder::ask_kernel(std::span<Look> looks, unwind::UnwindCache& cache) {
  std::vector<Look*> asking;
  std::vector<int> pids;
  std::vector<int> tids;
  for (Look& look : looks) {
    if (!look.known) {
      continue;
    }
    const std::size_t before = tids.size();
    for (const Thread& thread : look.sampled.process.threads) {
      if (wants_registers(thread)) {
        tids.push_back(thread.tid);
      }
    }
    if (tids.size() > before) {
      asking.push_back(&look);
      pids.push_back(look.sampled.process.pid);
    }
  }
  if (tids.empty()) {
    return;
  }
  const auto records = tasks_.read(pids, tids);
  for (Look* const look : asking) {
    unwind_again(*look, records, cache);
    Process& process = look->sampled.process;
    const bool worked = tasks_.status().state == registers::RungState::used;
    // A repaired stack that could not be confirmed lacks nothing.
    if (worked || std::ranges::any_of(process.threads, lacks_frames)) {
      process.rungs.push_back({bpf_source, tasks_.status()});
    }
  }
}

}  // namespace hangtrace::capture
