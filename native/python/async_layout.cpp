#include "python/async_layout.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "python/objects.hpp"

namespace hangtrace::python {
namespace {

// From the debug information of CPython 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1, 3.13.0 and the headers of
// 3.14.10 and 3.15.2 (gdb: ptype /o TaskObj, PyGenObject, PyFrameObject, PyThreadState), x86-64, builds with
// a GIL.
constexpr AsyncLayout kLayouts[] = {
    {.minor = 8,
     .generator_frame = 16,
     .generator_running = 24,
     .frame_stack_top = 72,
     .thread_dict = 152,
     .future_state = 72,
     .task_waiter = 104,
     .task_coroutine = 112,
     .task_name = 120,
     .task_size = 144},
    {.minor = 9,
     .generator_frame = 16,
     .generator_running = 24,
     .frame_stack_top = 72,
     .thread_dict = 152,
     .future_state = 80,
     .task_waiter = 144,
     .task_coroutine = 152,
     .task_name = 160,
     .task_size = 184},
    {.minor = 10,
     .generator_frame = 16,
     .frame_state = 108,
     .state_created = -2,
     .state_awaits = -1,
     .state_executing = 0,
     .frame_stack_top = 80,
     .frame_values = 64,
     .thread_dict = 152,
     .future_state = 88,
     .task_waiter = 152,
     .task_coroutine = 160,
     .task_name = 168,
     .task_size = 192},
    {.minor = 11,
     .generator_frame = 80,
     .generator_state = 75,
     .state_created = -2,
     .state_awaits = -1,
     .state_executing = 0,
     .frame_stack_top = 64,
     .thread_dict = 128,
     .future_state = 88,
     .task_waiter = 128,
     .task_coroutine = 136,
     .task_name = 144,
     .task_size = 176},
    {.minor = 12,
     .generator_frame = 72,
     .generator_state = 67,
     .state_created = -2,
     .state_awaits = -1,
     .state_executing = 0,
     .frame_stack_top = 64,
     .thread_dict = 112,
     .future_state = 88,
     .task_waiter = 128,
     .task_coroutine = 136,
     .task_name = 144,
     .task_size = 176},
    {.minor = 13,
     .generator_frame = 72,
     .generator_state = 67,
     .state_created = -3,
     .state_awaits = -1,
     .state_executing = 0,
     .frame_stack_top = 64,
     .thread_dict = 128,
     .future_state = 96,
     .task_waiter = 112,
     .task_coroutine = 120,
     .task_name = 128,
     .task_size = 144,
     .thread_loop = 304},
    {.minor = 14,
     .generator_frame = 72,
     .generator_state = 67,
     .state_created = -3,
     .state_awaits = -1,
     .state_executing = 0,
     .frame_stack_top = 64,
     .thread_dict = 128,
     .future_state = 104,
     .task_waiter = 120,
     .task_coroutine = 128,
     .task_name = 136,
     .task_size = 168,
     .task_node = 152,
     .thread_loop = 864,
     .interpreter_tasks = 10880,
     .thread_task = 872,
     .thread_tasks = 880},
    {.minor = 15,
     .generator_frame = 72,
     .generator_state = 67,
     .state_created = 0,
     .state_awaits = 2,
     .state_executing = 4,
     .frame_stack_top = 64,
     .thread_dict = 152,
     .future_state = 104,
     .task_waiter = 120,
     .task_coroutine = 128,
     .task_name = 136,
     .task_size = 168,
     .task_node = 152,
     .thread_loop = 1024,
     .interpreter_tasks = 10856,
     .thread_task = 1032,
     .thread_tasks = 1048},
};

constexpr std::size_t kSearched = 128 << 10;  // bytes before and after
constexpr std::size_t kPiece = 4096;
constexpr std::uint64_t kMaxThreadState = 1 << 16;
constexpr std::uint64_t kMaxInterpreter = 1 << 24;

// Modules/_asynciomodule.c, struct _Py_AsyncioModuleDebugOffsets of 3.14: 64-bit words.
enum Word : std::size_t {
  kTaskSize,
  kTaskName,
  kAwaitedBy,
  kIsTask,
  kAwaitedByIsSet,
  kTaskCoroutine,
  kTaskNode,
  kInterpreterSize,
  kInterpreterTasks,
  kThreadSize,
  kThreadLoop,
  kThreadTask,
  kThreadTasks,
  kWords
};

bool fits(std::span<const std::uint64_t> words, std::uint64_t task_size) {
  if (words[kTaskSize] != task_size) return false;
  for (std::size_t i : {kTaskName, kAwaitedBy, kTaskCoroutine, kTaskNode}) {
    if (words[i] < 16 || words[i] % 8 != 0 || words[i] + 8 > task_size) return false;
  }
  if (words[kIsTask] < 24 || words[kIsTask] >= task_size || words[kTaskNode] + 16 > task_size) return false;
  if (words[kAwaitedByIsSet] < words[kIsTask] || words[kAwaitedByIsSet] >= task_size) return false;
  if (words[kInterpreterSize] > kMaxInterpreter || words[kThreadSize] > kMaxThreadState) return false;
  if (words[kInterpreterTasks] % 8 != 0 || words[kInterpreterTasks] + 16 > words[kInterpreterSize])
    return false;
  for (std::size_t i : {kThreadLoop, kThreadTask, kThreadTasks}) {
    if (words[i] < 64 || words[i] % 8 != 0 || words[i] + 8 > words[kThreadSize]) return false;
  }
  return true;
}

}  // namespace

std::optional<AsyncLayout> async_layout(const Layout& layout) {
  for (AsyncLayout known : kLayouts) {
    if (known.minor != layout.minor) continue;
    // Free-threaded builds have a larger object header and nothing else new before these members.
    const int more = layout.object_size - 16;
    for (int AsyncLayout::*member :
         {&AsyncLayout::generator_frame, &AsyncLayout::generator_state, &AsyncLayout::generator_running,
          &AsyncLayout::future_state, &AsyncLayout::task_waiter, &AsyncLayout::task_coroutine,
          &AsyncLayout::task_name, &AsyncLayout::task_size, &AsyncLayout::task_node}) {
      if (known.*member >= 0) known.*member += more;
    }
    return known;
  }
  return std::nullopt;
}

bool apply_asyncio_debug(const memory::Reader& reader, memory::Address inside, std::int64_t task_size,
                         AsyncLayout& layout) {
  if (!plausible(inside) || inside < kSearched || task_size < 64 || task_size > 4096) return false;
  const memory::Address first = (inside - kSearched) / kPiece * kPiece;
  std::vector<std::byte> bytes(2 * kSearched + kPiece);
  Batch batch(reader);
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    batch.add(first + at, std::span(bytes).subspan(at, kPiece));
  }
  batch.read();  // pages that are not there stay zero
  std::vector<std::uint64_t> words(bytes.size() / 8);
  std::memcpy(words.data(), bytes.data(), 8 * words.size());
  const auto size = static_cast<std::uint64_t>(task_size);
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i + kWords <= words.size(); ++i) {
    if (!fits(std::span(words).subspan(i, kWords), size)) continue;
    if (found) return false;
    found = i;
  }
  if (!found) return false;
  const auto told = [&](Word word) { return static_cast<int>(words[*found + word]); };
  layout.task_size = told(kTaskSize);
  layout.task_name = told(kTaskName);
  layout.task_coroutine = told(kTaskCoroutine);
  // TaskObj: task_fut_waiter, task_coro, task_name follow each other; fut_state lies before the bits of which
  // task_is_task is the first.
  layout.task_waiter = told(kTaskCoroutine) - 8;
  layout.future_state = told(kIsTask) - 4;
  layout.task_node = told(kTaskNode);
  layout.interpreter_tasks = told(kInterpreterTasks);
  layout.thread_loop = told(kThreadLoop);
  layout.thread_task = told(kThreadTask);
  layout.thread_tasks = told(kThreadTasks);
  return true;
}

}  // namespace hangtrace::python
