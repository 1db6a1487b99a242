#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "python/objects.hpp"

namespace hangtrace::python {

enum class TaskKind { asyncio, greenlet };

struct TaskFrame {
  std::string function;
  std::string file;
  int line = 0;  // 0: unknown
  Address frame = 0;
  Address code = 0;
};

// The object of asyncio in one of whose methods a task is suspended: who has a permit of it, or owes an item
// or a signal, it does not record.
struct TaskObject {
  enum class Kind { none, lock, semaphore, event, condition, barrier, queue };

  Kind kind = Kind::none;
  Address address = 0;
  std::string type;    // of the object, without its module: "PriorityQueue"
  std::string method;  // what was called: "get", "join"
  // How many permits, items, or unfinished pieces of work it has, or have come; and of how many, where it
  // knows that.
  std::optional<std::int64_t> count;
  std::optional<std::int64_t> limit;
};

// A piece of work that a program switches to by itself: an asyncio task or a suspended greenlet.
struct PythonTask {
  TaskKind kind = TaskKind::asyncio;
  Address address = 0;
  std::string name;
  int native_tid = 0;    // thread whose event loop it belongs to; 0: no thread runs that loop, or unknown
  bool current = false;  // it runs, or runs into what its thread is blocked in
  bool done = false;
  std::string exception;  // done: type of the exception that ended it
  // What it waits for: "Queue.get", "Lock.acquire", "sleep", "task 'reader'", "gather of 3, 2 pending",
  // "Future", …; "ready": it waits for its turn only. "": not known, or current or done.
  std::string awaits;
  Address c_stack = 0;        // greenlet: innermost address of its part of its thread's stack
  Address awaits_object = 0;  // future or task; 0: none
  TaskObject object;          // in one of whose methods it is suspended
  // When a timer of its own ends the wait (sleep, wait_for, asyncio.timeout): time of the monotonic clock, in
  // seconds.
  std::optional<double> wakes_at;
  // See TaskNeeds. `computes`: the future of concurrent.futures that is done when the task is, by which
  // another thread waits for it; 0: none.
  std::vector<Address> needs;
  bool needs_known = false;
  Address lock = 0;
  std::vector<Address> holds;
  Address computes = 0;
  std::vector<TaskFrame> stack;  // innermost first
  std::string problem;           // why the stack is not whole
};

struct PythonTasks {
  std::vector<PythonTask> all;
  std::size_t left_out = 0;  // more than are looked at
  std::string problem;
};

}  // namespace hangtrace::python
