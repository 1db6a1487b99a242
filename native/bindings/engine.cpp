#include "bindings/engine.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <unordered_map>

#include "bindings/convert.hpp"
#include "bindings/recorders.hpp"
#include "capture/engine.hpp"

namespace hangtrace::bindings {

namespace {

using capture::Engine;

const char* name(capture::FoundBy found_by) {
  switch (found_by) {
    case capture::FoundBy::leaf:
      return "leaf";
    case capture::FoundBy::cfi:
      return "cfi";
    case capture::FoundBy::prologue:
      return "prologue";
    case capture::FoundBy::scan:
      return "scan";
    case capture::FoundBy::python:
      return "python";
    case capture::FoundBy::call_site:
      return "call_site";
  }
  return "cfi";
}

const char* name(capture::StackFrom from) {
  switch (from) {
    case capture::StackFrom::none:
      return "none";
    case capture::StackFrom::pc_sp:
      return "pc_sp";
    case capture::StackFrom::repaired:
      return "repaired";
    case capture::StackFrom::bpf:
      return "bpf";
    case capture::StackFrom::perf:
      return "perf";
    case capture::StackFrom::stop:
      return "stop";
  }
  return "none";
}

py::object name(capture::Error error) {
  switch (error) {
    case capture::Error::none:
      return py::none();
    case capture::Error::gone:
      return py::str("gone");
    case capture::Error::not_permitted:
      return py::str("not_permitted");
    case capture::Error::mmap_lock_held:
      return py::str("mmap_lock_held");
    case capture::Error::kernel_thread:
      return py::str("kernel_thread");
    case capture::Error::zombie:
      return py::str("zombie");
    case capture::Error::bits32:
      return py::str("32bit");
    case capture::Error::unreadable:
      return py::str("unreadable");
    case capture::Error::no_time:
      return py::str("no_time");
  }
  return py::str("unreadable");
}

py::object text_or_none(const std::string& value) {
  return value.empty() ? py::object(py::none()) : py::object(text(value));
}

py::list texts(const std::vector<std::string>& values) {
  py::list result;
  for (const std::string& value : values) {
    result.append(text(value));
  }
  return result;
}

py::tuple convert(const capture::Frame& frame) {
  const bool python = frame.kind == capture::FrameKind::python;
  return py::make_tuple(
      text(python ? "python" : "native"), text(frame.function),
      python ? text_or_none(frame.file) : py::object(py::none()),
      frame.line != 0 ? py::object(py::int_(frame.line)) : py::object(py::none()), text_or_none(frame.module),
      python ? py::object(py::none()) : py::object(py::int_(frame.address)), text(name(frame.found_by)));
}

// What has been made of the pictures of one look: much of them is the same for many threads. The pictures
// must outlive it.
class Made {
 public:
  py::tuple frame(const capture::Frame& frame) {
    const auto known = frames_.find(&frame);
    return known != frames_.end() ? known->second : frames_.emplace(&frame, convert(frame)).first->second;
  }

  // With the keys of the last one, in their order, so that it need not grow; all of them are still to be set.
  py::dict thread() const {
    if (!threads_) {
      return {};
    }
    PyObject* const copy = PyDict_Copy(threads_.ptr());
    if (copy == nullptr) {
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::dict>(copy);
  }
  void keep_keys(const py::dict& thread) {
    if (!threads_) {
      threads_ = thread;
    }
  }

 private:
  struct Hash {
    std::size_t operator()(const capture::Frame* frame) const {
      const std::uint64_t line = static_cast<std::uint64_t>(frame->line) << 32;
      const std::uint64_t sizes = frame->function.size() << 8 ^ frame->file.size() << 20;
      return (frame->address ^ line ^ sizes) * 0x9e3779b97f4a7c15 >> 16;
    }
  };
  struct Same {
    bool operator()(const capture::Frame* a, const capture::Frame* b) const { return *a == *b; }
  };
  std::unordered_map<const capture::Frame*, py::tuple, Hash, Same> frames_;
  py::object threads_;
};

py::list convert(const std::vector<capture::Frame>& frames, Made& made) {
  py::list result(frames.size());
  for (std::size_t i = 0; i < frames.size(); ++i) {
    PyList_SET_ITEM(result.ptr(), static_cast<py::ssize_t>(i), made.frame(frames[i]).release().ptr());
  }
  return result;
}

py::object convert(const std::optional<locks::Lock>& lock) {
  if (!lock) {
    return py::none();
  }
  py::dict result;
  result[key("kind")] = text(locks::name(lock->kind));
  result[key("address")] = lock->address;
  result[key("uaddr")] = lock->call.word;
  result[key("op")] = lock->call.op;
  result[key("value")] = lock->value;
  result[key("expected")] = lock->call.expected;
  result[key("timeout")] = lock->call.timeout;
  result[key("owner_tid")] = optional_int(lock->owner);
  result[key("owner_from")] = text_or_none(lock->owner_from);
  result[key("owner_exact")] = lock->owner_exact;
  result[key("readers")] = optional_int(lock->readers);
  result[key("mutex")] = optional_int(lock->mutex);
  result[key("shared_key")] =
      lock->shared_key ? py::object(py::make_tuple(lock->shared_key->device, lock->shared_key->inode,
                                                   lock->shared_key->offset))
                       : py::object(py::none());
  result[key("shared_file")] = text_or_none(lock->shared_file);
  result[key("owner_age_s")] =
      lock->owner_age_s ? py::object(py::float_(*lock->owner_age_s)) : py::object(py::none());
  result[key("unseen_owner")] = optional_int(lock->unseen_owner);
  result[key("python_lock_address")] = optional_int(lock->python_object);
  result[key("owner_function")] = text_or_none(lock->owner_function);
  result[key("problem")] = text_or_none(lock->problem);
  return result;
}

py::object convert(const python::Value& value);

py::dict convert_object(const python::Value& value) {
  py::dict result;
  result[key("type")] = text(value.type_name);
  result[key("address")] = value.address;
  switch (value.kind) {
    case python::ValueKind::list:
    case python::ValueKind::tuple:
    case python::ValueKind::dict: {
      py::list items;
      for (const python::Value& item : value.items) {
        items.append(convert(item));
      }
      result[key("length")] = value.length;
      result[key("items")] = items;
      break;
    }
    case python::ValueKind::bytes:
    case python::ValueKind::deque:
      result[key("length")] = value.length;
      break;
    default:
      result[key("held")] = optional_int(value.held);
  }
  return result;
}

py::object convert(const python::Value& value) {
  switch (value.kind) {
    case python::ValueKind::none:
      return py::none();
    case python::ValueKind::boolean:
      return py::bool_(value.integer != 0);
    case python::ValueKind::integer:
      return py::int_(value.integer);
    case python::ValueKind::real:
      return py::float_(value.real);
    case python::ValueKind::text:
      return text(value.text);
    default:
      return convert_object(value);
  }
}

py::list convert(const std::vector<capture::NamedValue>& values) {
  py::list result;
  for (const capture::NamedValue& value : values) {
    result.append(py::make_tuple(text(value.function), text(value.name),
                                 value.value ? convert(*value.value) : py::object(py::none())));
  }
  return result;
}

py::dict convert(const capture::Thread& thread, Made& made) {
  py::dict result = made.thread();
  result[key("tid")] = thread.tid;
  result[key("comm")] = text(thread.comm);
  result[key("state")] = text(std::string_view(&thread.state, 1));
  result[key("wchan")] = thread.wait_channel ? text_or_none(*thread.wait_channel) : py::object(py::none());
  result[key("syscall")] = optional_int(thread.syscall);
  if (thread.syscall && *thread.syscall >= 0) {
    py::tuple arguments(thread.arguments.size());
    for (std::size_t i = 0; i < thread.arguments.size(); ++i) {
      arguments[i] = thread.arguments[i];
    }
    result[key("args")] = arguments;
  } else {
    result[key("args")] = py::tuple();
  }
  result[key("sp")] = optional_int(thread.stack_pointer);
  result[key("pc")] = optional_int(thread.program_counter);
  result[key("run_ns")] = optional_int(thread.run_ns);
  result[key("slices")] = optional_int(thread.slices);
  result[key("start_ticks")] = thread.start_ticks;
  result[key("cpu")] = thread.cpu;
  result[key("utime")] = thread.user_ticks;
  result[key("stime")] = thread.system_ticks;
  result[key("minflt")] = thread.minor_faults;
  result[key("majflt")] = thread.major_faults;
  result[key("moved")] = thread.moved;
  result[key("running")] = thread.running;
  result[key("frames")] = convert(thread.frames, made);
  result[key("unmerged_python")] = convert(thread.unmerged_python, made);
  result[key("stack_from")] = text(name(thread.stack_from));
  result[key("complete")] = thread.complete;
  result[key("stack_problem")] = text_or_none(thread.stack_problem);
  result[key("python_problem")] = text_or_none(thread.python_problem);
  result[key("samples")] = py::none();
  if (thread.samples) {
    py::dict samples;
    samples["count"] = thread.samples->count;
    samples["same_leaf"] = thread.samples->same_leaf;
    samples["same_stack"] = thread.samples->same_stack;
    samples["leaves"] = texts(thread.samples->leaves);
    result[key("samples")] = samples;
  }
  result[key("python_name")] =
      thread.python_name ? py::object(text(*thread.python_name)) : py::object(py::none());
  result[key("ident")] = optional_int(thread.ident);
  result[key("holds_gil")] = thread.holds_gil;
  result[key("lock")] = convert(thread.lock);
  result[key("kernel_stack")] = texts(thread.kernel_stack);
  result[key("named_values")] = convert(thread.named_values);
  result[key("nap_loop")] = texts(thread.nap_loop);
  result[key("lets_go")] = text_or_none(thread.lets_go);
  made.keep_keys(result);
  return result;
}

py::object convert(const std::optional<capture::Python>& python) {
  if (!python) {
    return py::none();
  }
  py::dict result;
  result[key("version")] = text(python->version);
  result[key("layout_from")] = text(python->layout_from);
  result[key("free_threaded")] = python->free_threaded;
  result[key("gil")] = py::none();
  if (python->gil) {
    py::dict gil;
    gil[key("address")] = python->gil->address;
    gil[key("locked")] = python->gil->locked;
    gil[key("holder_tid")] = optional_int(python->gil->holder);
    result[key("gil")] = gil;
  }
  result[key("problem")] = text_or_none(python->problem);
  result[key("thread_count")] = python->thread_count;
  return result;
}

py::dict convert(const capture::TaskObject& object) {
  py::dict result;
  result[key("kind")] = object.kind;
  result[key("method")] = text(object.method);
  result[key("address")] = object.address;
  result[key("count")] = optional_int(object.count);
  result[key("limit")] = optional_int(object.limit);
  return result;
}

py::dict convert(const capture::Task& task, Made& made) {
  py::dict result;
  result[key("kind")] = task.kind == capture::TaskKind::asyncio ? "asyncio" : "greenlet";
  result[key("address")] = task.address;
  result[key("name")] = text(task.name);
  result[key("tid")] = optional_int(task.tid);
  result[key("current")] = task.current;
  result[key("done")] = task.done;
  result[key("moved")] = task.moved;
  result[key("exception")] = text_or_none(task.exception);
  result[key("awaits")] = text_or_none(task.awaits);
  result[key("awaits_address")] = optional_int(task.awaits_object);
  result[key("object")] = task.object ? py::object(convert(*task.object)) : py::object(py::none());
  result[key("needs")] = task.needs;
  result[key("needs_known")] = task.needs_known;
  result[key("lock")] = optional_int(task.lock);
  result[key("holds")] = task.holds;
  result[key("computes")] = optional_int(task.computes);
  result[key("wakes_in_s")] =
      task.wakes_in_s ? py::object(py::float_(*task.wakes_in_s)) : py::object(py::none());
  result[key("lets_go")] = text_or_none(task.lets_go);
  result[key("frames")] = convert(task.frames, made);
  result[key("named_values")] = convert(task.named_values);
  result[key("problem")] = text_or_none(task.problem);
  return result;
}

py::dict convert(const capture::Process& process, Made& made) {
  py::dict result;
  result[key("pid")] = process.pid;
  result[key("error")] = name(process.error);
  result[key("error_tid")] = optional_int(process.error_tid);
  result[key("exec_changed")] = process.exec_changed;
  py::list threads;
  for (const capture::Thread& thread : process.threads) {
    threads.append(convert(thread, made));
  }
  result[key("threads")] = threads;
  result[key("python")] = convert(process.python);
  py::list tasks;
  for (const capture::Task& task : process.tasks) {
    tasks.append(convert(task, made));
  }
  result[key("tasks")] = tasks;
  result[key("tasks_left_out")] = process.tasks_left_out;
  result[key("notes")] = texts(process.notes);
  py::list rungs;
  for (const capture::Rung& rung : process.rungs) {
    rungs.append(py::make_tuple(rung.source, name(rung.status.state), text(rung.status.reason)));
  }
  result[key("rungs")] = rungs;
  result[key("stopped_us")] = (process.stopped_ns + 999) / 1000;
  return result;
}

using NamedLocals = std::map<std::string, std::vector<std::string>>;

py::list capture_processes(Engine& engine, const std::vector<int>& pids, bool python, bool stacks, bool bpf,
                           bool running, const std::vector<int>& stop,
                           const std::optional<NamedLocals>& named_locals, const py::object& on_process,
                           std::optional<double> budget_s, std::size_t workers) {
  capture::Options options;
  if (budget_s) {
    options.until = after(*budget_s);
  }
  options.python = python;
  options.stacks = stacks;
  options.bpf = bpf;
  options.running = running;
  options.stop = stop;
  options.workers = workers;
  options.named_locals = named_locals.value_or(NamedLocals{});
  if (!on_process.is_none()) {
    options.on_process = [&on_process](int pid) {
      const py::gil_scoped_acquire gil;
      on_process(pid);
    };
  }
  std::vector<capture::Process> processes;
  {
    const py::gil_scoped_release release;
    processes = engine.capture(pids, options);
  }
  const CollectorPause pause;
  const SharedTexts shared;
  Made made;
  py::list result;
  for (const capture::Process& process : processes) {
    result.append(convert(process, made));
  }
  return result;
}

py::dict python_environ(Engine& engine, int pid, const std::vector<std::string>& names) {
  std::map<std::string, std::string> values;
  {
    const py::gil_scoped_release release;
    values = engine.python_environ(pid, names);
  }
  py::dict result;
  for (const auto& [name, value] : values) {
    result[text(name)] = text(value);
  }
  return result;
}

py::list python_argv(Engine& engine, int pid) {
  std::vector<std::string> arguments;
  {
    const py::gil_scoped_release release;
    arguments = engine.python_argv(pid);
  }
  return texts(arguments);
}

py::list python_globals(Engine& engine, int pid, const std::string& module,
                        const std::vector<std::string>& names, std::size_t most_items,
                        std::size_t most_values) {
  constexpr std::size_t ceiling = 1 << 20;
  const python::ValueLimits limits{std::min(most_items, ceiling), std::min(most_values, ceiling)};
  std::vector<std::optional<python::Value>> values;
  {
    const py::gil_scoped_release release;
    values = engine.python_globals(pid, module, names, limits);
  }
  py::list result;
  for (const auto& value : values) {
    result.append(value ? convert(*value) : py::object(py::none()));
  }
  return result;
}

py::list symbol_addresses(Engine& engine, int pid, const std::string& library,
                          const std::vector<std::string>& names) {
  std::vector<std::optional<std::uint64_t>> addresses;
  {
    const py::gil_scoped_release release;
    addresses = engine.symbols(pid, library, names);
  }
  py::list result;
  for (const auto& address : addresses) {
    result.append(optional_int(address));
  }
  return result;
}

py::list code_names(Engine& engine, int pid, const std::vector<std::uint64_t>& addresses) {
  std::vector<capture::CodeName> names;
  {
    const py::gil_scoped_release release;
    names = engine.code_names(pid, addresses);
  }
  py::list result;
  for (const capture::CodeName& name : names) {
    result.append(py::make_tuple(text_or_none(name.function), text_or_none(name.module)));
  }
  return result;
}

py::tuple source_lines(Engine& engine, int pid, const std::vector<std::uint64_t>& addresses,
                       double budget_s) {
  capture::SourceAnswer answer;
  {
    const py::gil_scoped_release release;
    answer = engine.source_lines(pid, addresses, after(budget_s));
  }
  py::list frames;
  for (const dwarf::SourceFrames& found : answer.frames) {
    py::list chain;
    for (const dwarf::SourceFrame& frame : found) {
      chain.append(
          py::make_tuple(text(frame.function), text_or_none(frame.file),
                         frame.line != 0 ? py::object(py::int_(frame.line)) : py::object(py::none())));
    }
    frames.append(chain);
  }
  return py::make_tuple(frames, texts(answer.problems));
}

}  // namespace

void define_engine(py::module_& module) {
  py::class_<Engine>(module, "Engine")
      .def(py::init<std::string>(), py::arg("proc_root") = "/proc")
      .def("capture", &capture_processes, py::arg("pids"), py::kw_only(), py::arg("python") = true,
           py::arg("stacks") = true, py::arg("bpf") = true, py::arg("running") = true,
           py::arg("stop") = std::vector<int>{}, py::arg("named_locals") = py::none(),
           py::arg("on_process") = py::none(), py::arg("budget_s") = py::none(), py::arg("workers") = 0)
      .def("python_environ", &python_environ, py::arg("pid"), py::arg("names"))
      .def("python_globals", &python_globals, py::arg("pid"), py::arg("module"), py::arg("names"),
           py::kw_only(), py::arg("most_items"), py::arg("most_values"))
      .def("python_argv", &python_argv, py::arg("pid"))
      .def("symbol_addresses", &symbol_addresses, py::arg("pid"), py::arg("library"), py::arg("names"))
      .def("recorders", &recorders, py::arg("pid"), py::kw_only(), py::arg("all") = false,
           py::arg("frames") = false)
      .def("code_names", &code_names, py::arg("pid"), py::arg("addresses"))
      .def("source_lines", &source_lines, py::arg("pid"), py::arg("addresses"), py::kw_only(),
           py::arg("budget_s"));
}

}  // namespace hangtrace::bindings
