#include "capture/tasks.hpp"

#include <algorithm>
#include <ctime>

namespace hangtrace::capture {

namespace {

double monotonic_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TaskKind kind(python::TaskKind kind) {
  switch (kind) {
    case python::TaskKind::asyncio:
      return TaskKind::asyncio;
    case python::TaskKind::greenlet:
      return TaskKind::greenlet;
  }
  return TaskKind::asyncio;
}

std::optional<TaskObject> object(const python::TaskObject& source) {
  using Kind = python::TaskObject::Kind;
  const char* name = nullptr;
  switch (source.kind) {
    case Kind::none:
      return std::nullopt;
    case Kind::lock:
      name = "lock";
      break;
    case Kind::semaphore:
      name = "semaphore";
      break;
    case Kind::event:
      name = "event";
      break;
    case Kind::condition:
      name = "condition";
      break;
    case Kind::barrier:
      name = "barrier";
      break;
    case Kind::queue:
      name = "queue";
      break;
  }
  return TaskObject{name, source.method, source.address, source.count, source.limit};
}

// The thread on whose stack an address lies.
int thread_of_stack(const Look& look, Address address) {
  const proc::Mapping* const mapping = proc::find_mapping(look.known->mappings(), address);
  if (address == 0 || mapping == nullptr) {
    return 0;
  }
  for (const Thread& thread : look.sampled.process.threads) {
    if (thread.stack_pointer && *thread.stack_pointer >= mapping->start &&
        *thread.stack_pointer < mapping->end) {
      return thread.tid;
    }
  }
  return 0;
}

// Tasks change only while some thread of the interpreter runs: their own if it is known, else any.
bool moved(const Look& look, const python::PythonTask& task) {
  const auto ran = [&](int tid) {
    const Thread* const thread = find_thread(look.sampled.process, tid);
    return thread == nullptr || thread->moved || thread->running;
  };
  if (task.native_tid != 0) {
    return ran(task.native_tid);
  }
  return std::ranges::any_of(look.python->threads,
                             [&](const python::PythonThread& thread) { return ran(thread.native_tid); });
}

}  // namespace

void add_tasks(Look& look) {
  if (!look.python) {
    return;
  }
  const double now = monotonic_now();
  Process& process = look.sampled.process;
  for (std::size_t i = 0; i < look.python->tasks.all.size(); ++i) {
    python::PythonTask& source = look.python->tasks.all[i];
    if (source.native_tid == 0) {
      source.native_tid = thread_of_stack(look, source.c_stack);
    }
    Task task;
    task.kind = kind(source.kind);
    task.address = source.address;
    task.moved = moved(look, source);
    if (source.native_tid != 0) {
      task.tid = source.native_tid;
    }
    task.name = std::move(source.name);
    task.current = source.current;
    task.done = source.done;
    task.exception = std::move(source.exception);
    task.awaits = std::move(source.awaits);
    if (source.awaits_object != 0) {
      task.awaits_object = source.awaits_object;
    }
    task.object = object(source.object);
    task.needs = std::move(source.needs);
    task.needs_known = source.needs_known;
    task.holds = std::move(source.holds);
    if (source.lock != 0) {
      task.lock = source.lock;
    }
    if (source.computes != 0) {
      task.computes = source.computes;
    }
    if (source.wakes_at) {
      task.wakes_in_s = *source.wakes_at - now;
    }
    for (python::TaskFrame& frame : source.stack) {
      task.frames.push_back({FrameKind::python, std::move(frame.function), std::move(frame.file), frame.line,
                             "", 0, FoundBy::python});
    }
    if (i < look.task_lets_go.size()) {
      task.lets_go = std::move(look.task_lets_go[i]);
    }
    if (i < look.task_values.size()) {
      task.named_values = std::move(look.task_values[i]);
    }
    task.problem = std::move(source.problem);
    process.tasks.push_back(std::move(task));
  }
  process.tasks_left_out = look.python->tasks.left_out;
  if (process.tasks_left_out != 0) {
    process.notes.push_back(std::to_string(process.tasks_left_out) + " more tasks are not looked at");
  }
  if (!look.python->tasks.problem.empty()) {
    process.notes.push_back("tasks: " + look.python->tasks.problem);
  }
  look.python->tasks.all.clear();
}

}  // namespace hangtrace::capture
