#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "capture/eval_parts.hpp"
#include "capture/known.hpp"
#include "capture/sample.hpp"
#include "capture/types.hpp"
#include "locks/futex.hpp"
#include "memory/overlay_reader.hpp"
#include "python/process.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::capture {

/// One process in the middle of a look: all that was copied in its moment, before anything is made of it.
struct Look {
  Sampled sampled;
  std::shared_ptr<Known> known;  // null: memory was not touched
  python::ThreadIds thread_ids;
  std::string pid_namespace;                      // empty: ours, thread ids are as we see them
  std::unique_ptr<memory::OverlayReader> copies;  // around futex words; null: memory was not touched
  std::unique_ptr<std::byte[]> stack_bytes;
  std::vector<std::span<const std::byte>> stacks;      // per thread, from its stack pointer on; empty: none
  std::vector<std::optional<locks::FutexCall>> calls;  // per thread
  std::optional<python::PythonState> python;
  std::vector<std::vector<NamedValue>> task_values;  // per task of `python`; empty: none were asked for
  std::vector<std::string> task_lets_go;  // per task of `python`: by which word it could let others go on
  std::unordered_map<int, python::LockFacts> python_locks;  // by waiter
  std::vector<unwind::Stack> unwound;                       // per thread
  std::map<std::size_t, std::vector<unwind::Stack>>
      samples;  // of running threads, in the order they were taken
};

/// The thread of this id; null if there is none.
const Thread* find_thread(const Process& process, int tid);

/// Whether a stack says at least as much as another one of the same thread.
bool is_better(const unwind::Stack& stack, const unwind::Stack& than);

/// Of a stack, what decoding the lock that its thread waits for may need: pthread_cond_wait's frame lies
/// within.
inline constexpr std::size_t lock_frames_bytes = 1024;

/// Makes `stack` that of the thread at index `i`.
void show_stack(Look& look, std::size_t i, unwind::Stack stack, StackFrom from);

/// Copies stacks and futex words and reads the interpreter, between two readings of schedstat.
void take(Look& look, const Options& options, const std::string& proc_root);

/// Unwinds all threads and gives the copies of their stacks back, but for the ends that decoding locks may
/// need. The main thread goes first; who has no turn before the time is over stays without a stack.
void unwind_threads(Look& look, unwind::UnwindCache& cache, const Options& options);

/// Names all frames in one pass over all processes; then up to `workers` threads decode locks and merge
/// Python frames, each those of one process at a time.
void finish(std::span<Look> looks, const std::string& proc_root, EvalParts& parts, unwind::TableCache& tables,
            std::size_t workers);

}  // namespace hangtrace::capture
