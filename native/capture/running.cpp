#include "capture/running.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>

namespace hangtrace::capture {

namespace {

constexpr const char* perf_source = "perf samples";
constexpr std::size_t most_leaves = 8;

// Main threads first, then those with a name of Python's: a job's work is done there.
int importance(const Look& look, const Thread& thread) {
  if (thread.tid == look.sampled.process.pid) {
    return 0;
  }
  const bool python = look.python && std::ranges::any_of(look.python->threads, [&](const auto& known) {
                        return known.native_tid == thread.tid;
                      });
  return python ? 1 : 2;
}

bool same_callers(const unwind::Stack& one, const unwind::Stack& other) {
  return std::ranges::equal(one.frames.begin() + 1, one.frames.end(), other.frames.begin() + 1,
                            other.frames.end(),
                            [](const unwind::Frame& a, const unwind::Frame& b) { return a.pc == b.pc; });
}

const unwind::Stack& most_telling(const std::vector<unwind::Stack>& stacks) {
  const unwind::Stack* best = &stacks.front();
  for (const unwind::Stack& stack : stacks) {
    if (is_better(stack, *best)) {
      best = &stack;
    }
  }
  return *best;
}

std::string hexadecimal(Address value) {
  std::array<char, 24> text;
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(value));
  return text.data();
}

// A function without a name is known by its place, so that two of them are not taken for one.
std::string leaf_name(const unwind::Frame& frame, const unwind::FrameName& name) {
  if (!name.function.empty()) {
    return name.function;
  }
  if (frame.module == nullptr) {
    return hexadecimal(frame.pc);
  }
  const std::string& path = frame.module->path();
  return path.substr(path.rfind('/') + 1) + "+" + hexadecimal(frame.va);
}

}  // namespace

RunningThreads::RunningThreads(std::span<Look> looks) {
  for (Look& look : looks) {
    if (!look.known) {
      continue;
    }
    const std::vector<Thread>& threads = look.sampled.process.threads;
    for (std::size_t i = 0; i < threads.size(); ++i) {
      if (threads[i].running) {
        targets_.push_back({&look, i});
      }
    }
  }
  if (targets_.empty()) {
    return;
  }
  const auto rank = [](const Target& target) {
    return importance(*target.look, target.look->sampled.process.threads[target.thread]);
  };
  std::ranges::stable_sort(targets_, {}, rank);
  std::vector<int> tids;
  for (const Target& target : targets_) {
    tids.push_back(target.look->sampled.process.threads[target.thread].tid);
  }
  sampler_.begin(tids);
}

void RunningThreads::collect(unwind::UnwindCache& cache) {
  if (targets_.empty()) {
    return;
  }
  std::map<Look*, std::unique_ptr<unwind::Unwinder>> unwinders;
  for (const Target& target : targets_) {
    std::unique_ptr<unwind::Unwinder>& unwinder = unwinders[target.look];
    if (!unwinder) {
      unwinder = std::make_unique<unwind::Unwinder>(target.look->known->modules(), cache);
    }
  }
  const auto keep = [&](std::size_t index, const unwind::Registers& registers,
                        std::span<const std::byte> stack) {
    const Target& target = targets_[index];
    const auto sp = registers.get(unwind::x86_64.stack_pointer);
    unwind::Stack found = unwinders[target.look]->unwind(registers, {sp.value_or(0), stack, true});
    if (!found.frames.empty()) {
      target.look->samples[target.thread].push_back(std::move(found));
    }
  };
  const auto still_runs = [&](std::size_t index) {
    const Sampled& sampled = targets_[index].look->sampled;
    const int tid = sampled.process.threads[targets_[index].thread].tid;
    return sampled.tasks->syscall(tid).activity == proc::Activity::running;
  };
  sampler_.finish(keep, still_runs);
  const registers::RungStatus& status = sampler_.status();
  for (const Target& target : targets_) {
    Thread& thread = target.look->sampled.process.threads[target.thread];
    if (target.look->samples.contains(target.thread)) {
      show(target, StackFrom::perf);
    } else {
      thread.stack_problem =
          status.reason.empty() ? "it left the CPU before a sample was taken" : status.reason;
    }
  }
}

registers::RungStatus RunningThreads::status_of(const Look& look) const {
  std::size_t running = 0;
  std::size_t without = 0;
  std::size_t lacking = 0;
  for (const Target& target : targets_) {
    if (target.look != &look) {
      continue;
    }
    ++running;
    const int tid = look.sampled.process.threads[target.thread].tid;
    if (look.samples.contains(target.thread)) {
      continue;  // also by another way
    }
    ++without;
    // Who fell asleep instead is no gap: another look shows it.
    if (look.sampled.tasks->syscall(tid).activity == proc::Activity::running) {
      ++lacking;
    }
  }
  const registers::RungStatus& status = sampler_.status();
  const bool sampled =
      status.state == registers::RungState::used || status.state == registers::RungState::limited;
  if (without == 0 || (lacking == 0 && sampled)) {
    return {registers::RungState::used, {}};
  }
  if (!sampled) {
    return status;
  }
  return {registers::RungState::limited,
          std::to_string(lacking) + " of " + std::to_string(running) + " running threads have no stack: " +
              (status.reason.empty() ? "they were on no CPU while samples were taken" : status.reason)};
}

void RunningThreads::report() {
  for (const Target& target : targets_) {
    std::vector<Rung>& rungs = target.look->sampled.process.rungs;
    if (std::ranges::find(rungs, perf_source, &Rung::source) == rungs.end()) {
      rungs.push_back({perf_source, status_of(*target.look)});
    }
  }
}

void RunningThreads::show(const Target& target, StackFrom from) {
  show_stack(*target.look, target.thread, most_telling(target.look->samples[target.thread]), from);
}

void RunningThreads::add_preempted(registers::TaskRegisters& tasks, unwind::UnwindCache& cache) {
  struct Waiting {
    Target target;
    std::uint64_t slices;
  };
  std::vector<Waiting> waiting;
  std::vector<int> pids;
  std::vector<int> tids;
  for (const Target& target : targets_) {
    const Sampled& sampled = target.look->sampled;
    const int tid = sampled.process.threads[target.thread].tid;
    const auto stat = sampled.tasks->schedstat(tid);
    // A kernel that does not count slices could not tell that the thread ran.
    if (target.look->samples.contains(target.thread) || !stat || stat->slices == 0) {
      continue;
    }
    waiting.push_back({target, stat->slices});
    tids.push_back(tid);
    if (std::ranges::find(pids, sampled.process.pid) == pids.end()) {
      pids.push_back(sampled.process.pid);
    }
  }
  if (waiting.empty()) {
    return;
  }
  const auto records = tasks.read(pids, tids);
  for (const auto& [target, slices] : waiting) {
    const Sampled& sampled = target.look->sampled;
    const int tid = sampled.process.threads[target.thread].tid;
    const auto record = records.find(tid);
    unwind::Registers registers;
    if (record == records.end() || record->second.on_cpu != 0 ||
        !registers::from_pt_regs(record->second.words, registers)) {
      continue;
    }
    unwind::Stack stack = unwind::Unwinder(target.look->known->modules(), cache).unwind(registers, {});
    const auto stat = sampled.tasks->schedstat(tid);
    if (!stat || stat->slices != slices || stack.frames.empty()) {
      continue;  // it got on a CPU meanwhile
    }
    target.look->samples[target.thread].push_back(std::move(stack));
    show(target, StackFrom::bpf);
  }
}

std::vector<SampledLeaves> leaves_of(std::span<Look> looks) {
  std::vector<SampledLeaves> found;
  for (Look& look : looks) {
    if (look.samples.empty()) {
      continue;
    }
    SampledLeaves& sampled = found.emplace_back();
    sampled.look = &look;
    for (const auto& [thread, stacks] : look.samples) {
      for (const unwind::Stack& stack : stacks) {
        sampled.threads.push_back(thread);
        sampled.stacks.push_back({{stack.frames.front()}, stack.end});
      }
    }
  }
  return found;
}

void describe_samples(const SampledLeaves& sampled, std::span<const std::vector<unwind::FrameName>> names) {
  for (std::size_t i = 0; i < sampled.stacks.size(); ++i) {
    std::optional<Samples>& samples = sampled.look->sampled.process.threads[sampled.threads[i]].samples;
    if (!samples) {
      samples.emplace().same_leaf = true;
    }
    ++samples->count;
    std::string name = leaf_name(sampled.stacks[i].frames.front(), names[i].front());
    if (std::ranges::find(samples->leaves, name) != samples->leaves.end()) {
      continue;
    }
    samples->same_leaf = samples->leaves.empty();
    if (samples->leaves.size() < most_leaves) {
      samples->leaves.push_back(std::move(name));
    }
  }
  for (const auto& [thread, stacks] : sampled.look->samples) {
    Samples& samples = *sampled.look->sampled.process.threads[thread].samples;
    samples.same_stack = samples.same_leaf && std::ranges::all_of(stacks, [&](const unwind::Stack& stack) {
                           return stack.complete() && same_callers(stack, stacks.front());
                         });
  }
}

}  // namespace hangtrace::capture
