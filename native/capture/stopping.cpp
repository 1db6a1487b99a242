#include "capture/stopping.hpp"

#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>

#include "memory/file_reader.hpp"
#include "registers/stopper.hpp"

namespace hangtrace::capture {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* stop_source = "thread stop";
constexpr std::size_t most_stops = 64;  // in one look
constexpr auto longest = std::chrono::milliseconds(200);
constexpr auto longest_of_process = std::chrono::milliseconds(50);
constexpr auto longest_of_thread = std::chrono::milliseconds(20);
constexpr std::size_t stack_bytes = 32 << 10;

// Calls that go on as if nothing had happened when their thread is stopped for a moment: measured on
// Linux 6.18. Others are not on this list because they return EINTR to the program (epoll_wait, semop,
// sigtimedwait, io_uring_enter, and calls on sockets with a timeout: signal(7), "Interruption of system calls
// and library functions by stop signals"), or because it is not known.
constexpr std::array<std::int64_t, 14> restarted{
#if defined(__x86_64__)
    SYS_futex, SYS_poll,  SYS_ppoll, SYS_select, SYS_pselect6, SYS_nanosleep, SYS_clock_nanosleep,
    SYS_flock, SYS_fcntl, SYS_wait4, SYS_waitid, SYS_msgrcv,   SYS_pause,     SYS_sched_yield,
#endif
};
constexpr std::array<std::int64_t, 4> on_descriptor{SYS_read, SYS_write, SYS_readv, SYS_writev};

// Whether registers are what is missing: not where BPF or a sample gave all of them, and not where a stack
// ends for want of a table, of memory, or at the bound of its length.
bool wants_registers(const Look& look, std::size_t i) {
  const Thread& thread = look.sampled.process.threads[i];
  if (thread.complete || thread.stack_from == StackFrom::bpf || thread.stack_from == StackFrom::perf) {
    return false;
  }
  if (thread.running) {
    return look.unwound[i].frames.empty();
  }
  return thread.stack_pointer && thread.program_counter &&
         look.unwound[i].end == unwind::End::unknown_register;
}

// Why a thread is not stopped; empty if nothing speaks against it.
std::string objection(int pid, const Thread& thread) {
  if (thread.state != 'S' && thread.state != 'R') {
    return registers::describe(registers::StopOutcome::left_alone);
  }
  if (thread.running || *thread.syscall < 0 ||
      std::ranges::find(restarted, *thread.syscall) != restarted.end()) {
    return {};
  }
  if (std::ranges::find(on_descriptor, *thread.syscall) != on_descriptor.end()) {
    // Of a file system in user space, or a socket with a timeout, they could return EINTR.
    const auto target = proc::read_link(
        proc::process_path("/proc", pid, "fd/" + std::to_string(static_cast<int>(thread.arguments[0]))));
    if (target && (target->starts_with("pipe:[") || target->starts_with("anon_inode:["))) {
      return {};
    }
  }
  return "not stopped: the system call it is in could return an error to the program";
}

// Whether the thread ran for nothing but the stop: then its registers are those with which it fell asleep.
bool only_stopped(const Thread& thread, const registers::Stopped& stopped) {
  return !thread.moved && stopped.activity && thread.slices &&
         stopped.activity->slices == *thread.slices + 1 &&
         stopped.words[registers::pt_regs_rip] == thread.program_counter &&
         stopped.words[registers::pt_regs_rsp] == thread.stack_pointer;
}

class Stopping {
 public:
  Stopping(Look& look, unwind::UnwindCache& cache)
      : look_(look), unwinder_(look.known->modules(), cache), reader_("/proc", look.sampled.memory_id) {}

  registers::StopOutcome stop(std::size_t i, Clock::duration most) {
    Thread& thread = look_.sampled.process.threads[i];
    const registers::StopRequest request{
        .pid = look_.sampled.process.pid,
        .tid = thread.tid,
        .reader = &reader_,
        .stack_size = [this](Address sp) { return stack_size(sp); },
        .deadline = std::chrono::duration_cast<std::chrono::microseconds>(most),
    };
    const registers::Stopped stopped = registers::stop_thread(request);
    look_.sampled.process.stopped_ns += static_cast<std::uint64_t>(stopped.still.count());
    if (stopped.outcome != registers::StopOutcome::stopped) {
      thread.stack_problem = registers::describe(stopped.outcome);
      return stopped.outcome;
    }
    unwind::Registers registers;
    if (!registers::from_pt_regs(stopped.words, registers)) {
      return stopped.outcome;
    }
    const unwind::StackCopy copy{stopped.words[registers::pt_regs_rsp], stopped.stack, true};
    const bool slept = only_stopped(thread, stopped);
    unwind::Stack stack = unwinder_.unwind(registers, {copy.base, copy.bytes, !slept});
    if (slept && !sleeps_again(thread)) {
      stack = unwinder_.unwind(registers, copy);  // what lies beyond the copy may be of another moment
    }
    if (!is_better(stack, look_.unwound[i])) {
      return stopped.outcome;
    }
    thread.moved = !slept;
    show_stack(look_, i, std::move(stack), StackFrom::stop);
    return stopped.outcome;
  }

 private:
  // Whether it has run no more than to take up its call again.
  bool sleeps_again(const Thread& thread) const {
    const auto stat = look_.sampled.tasks->schedstat(thread.tid);
    return stat && stat->slices <= *thread.slices + 2;
  }

  std::size_t stack_size(Address sp) const {
    const proc::Mapping* const mapping = proc::find_mapping(look_.known->mappings(), sp);
    return mapping != nullptr && mapping->readable ? std::min<std::size_t>(stack_bytes, mapping->end - sp)
                                                   : 0;
  }

  Look& look_;
  unwind::Unwinder unwinder_;
  memory::FileReader reader_;  // process_vm_readv could not be killed while it waits
};

}  // namespace

void stop_for_stacks(std::span<Look> looks, std::span<const int> pids, unwind::UnwindCache& cache) {
  const auto until = Clock::now() + longest;
  std::size_t stops = 0;
  for (Look& look : looks) {
    Process& process = look.sampled.process;
    if (!look.known || std::ranges::find(pids, process.pid) == pids.end()) {
      continue;
    }
    Stopping stopping(look, cache);
    registers::RungStatus status;
    const auto end = std::min(until, Clock::now() + longest_of_process);
    std::size_t left_out = 0;
    for (std::size_t i = 0; i < process.threads.size(); ++i) {
      Thread& thread = process.threads[i];
      if (!wants_registers(look, i)) {
        continue;
      }
      if (std::string why = objection(process.pid, thread); !why.empty()) {
        thread.stack_problem = std::move(why);
        continue;
      }
      const auto now = Clock::now();
      if (stops == most_stops || now >= end) {
        ++left_out;
        thread.stack_problem = "not stopped: others were, for as long as is allowed";
        continue;
      }
      ++stops;
      const auto outcome = stopping.stop(i, std::min<Clock::duration>(longest_of_thread, end - now));
      if (outcome == registers::StopOutcome::not_permitted) {
        status = {registers::RungState::refused, "ptrace is not permitted"};
        break;
      }
      status.state = registers::RungState::used;
    }
    if (left_out != 0 && status.state != registers::RungState::refused) {
      status = {registers::RungState::limited,
                std::to_string(left_out) + " more threads lack registers: no more than " +
                    std::to_string(most_stops) + " are stopped in one look, for no more than " +
                    std::to_string(longest_of_process.count()) + " ms in a process"};
    }
    if (status.state != registers::RungState::unused) {
      process.rungs.push_back({stop_source, status});
    }
  }
}

}  // namespace hangtrace::capture
