#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "memory/reader.hpp"
#include "python/layout.hpp"

namespace hangtrace::python {

// What reading suspended coroutines and asyncio's C objects needs beyond Layout: offsets in bytes for one
// minor version, -1 for what it does not have.
struct AsyncLayout {
  int minor = 0;

  // PyGenObject, PyCoroObject and PyAsyncGenObject begin alike (Include/cpython/genobject.h).
  int generator_frame = -1;    // since 3.11 the frame itself, before that a pointer to it
  int generator_state = -1;    // since 3.11: gi_frame_state, a signed byte
  int generator_running = -1;  // 3.8 and 3.9: gi_running, a byte
  int frame_state = -1;        // 3.10: f_state, a signed byte
  // enum _framestate: values of these states. Those from state_awaits up to state_executing await something
  // (before 3.13: are suspended, whatever for), greater ones are over.
  int state_created = 0;
  int state_awaits = 0;
  int state_executing = 0;
  // End of the value stack: 3.8, 3.9 and since 3.14 a pointer; 3.10 a depth counted from frame_values; 3.11
  // to 3.13 a count of slots.
  int frame_stack_top = -1;
  int frame_values = -1;  // 3.10: f_valuestack
  int thread_dict = -1;   // PyThreadState.dict

  // TaskObj and FutureObj of Modules/_asynciomodule.c. `loop` is the first word after the object header,
  // `callback0` the second, `exception` the fifth in all versions.
  int future_state = -1;
  int task_waiter = -1;
  int task_coroutine = -1;
  int task_name = -1;
  int task_size = -1;
  int task_node = -1;  // since 3.14: {next, prev} in the list of all tasks of a thread

  int thread_loop = -1;  // since 3.13, in the thread state; before that in thread_dict
  // Since 3.14, in PyInterpreterState and the thread state.
  int interpreter_tasks = -1;
  int thread_task = -1;
  int thread_tasks = -1;
};

// For the target's version and build; nullopt if it is not known.
std::optional<AsyncLayout> async_layout(const Layout& layout);

// Since 3.14 _asyncio describes itself in a structure _AsyncioDebug, in a section of its own. It is searched
// near `inside`, an address in the data of that module, as the only thing that starts with the size of a
// task (`task_size`, which its type tells) and fits its own limits. False, and nothing changed, if it is not
// there.
bool apply_asyncio_debug(const memory::Reader& reader, memory::Address inside, std::int64_t task_size,
                         AsyncLayout& layout);

}  // namespace hangtrace::python
