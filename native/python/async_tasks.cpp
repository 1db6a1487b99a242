#include "python/async_tasks.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "python/callables.hpp"
#include "python/coroutines.hpp"
#include "python/names.hpp"
#include "python/process_state.hpp"
#include "python/task_needs.hpp"
#include "python/task_object.hpp"

// The tasks of asyncio: Modules/_asynciomodule.c and Lib/asyncio/tasks.py. Up to 3.13 all tasks are in a
// WeakSet of the module (`_all_tasks`, since 3.12 `_scheduled_tasks`) and a set `_eager_tasks`; since 3.14
// tasks of the C class are in a list of the thread that made them.
namespace hangtrace::python {
namespace {

constexpr std::size_t kMaxCandidates = 1 << 14;
constexpr std::size_t kMaxTasks = 2000;
constexpr std::size_t kMaxDoneTasks = 200;
constexpr std::size_t kMaxChildren = 1 << 14;  // of all gathers
constexpr std::size_t kMaxLayouts = 64;
constexpr std::size_t kMaxHandedOver = 256;  // callbacks of a loop

enum FutureState : std::int32_t { kPending = 0, kCancelled = 1, kFinished = 2 };

struct Raw {
  Address task = 0;
  Address loop = 0;
  std::int32_t state = kPending;
  Address name = 0;
  Address coroutine = 0;
  Address waiter = 0;
  Address exception = 0;
};

class AsyncioTasks {
 public:
  AsyncioTasks(PythonProcess::State& own, const Interpreter& interpreter,
               const std::vector<ThreadState>& threads, std::size_t first, PythonState& state)
      : own_(own),
        objects_(own.objects),
        layout_(own.layout()),
        reader_(own.reader),
        interpreter_(interpreter),
        threads_(threads),
        first_(first),
        state_(state),
        object_(own),
        needs_(own, {.is_task = [this](Address future) { return is_task(future); },
                     .is_pending = [this](Address future) { return future_state(future) == kPending; },
                     .callback = [this](Address future) { return first_callback(future); }}) {}

  void read() {
    const std::array<std::string_view, 2> modules = {"asyncio.tasks", "_asyncio"};
    const auto found = own_.find_modules(interpreter_, modules);
    if (!found[0]) return;
    const Address tasks_module = word(*found[0], 0);  // PyModuleObject.md_dict
    if (!prepare(found[1])) return;
    std::vector<Address> candidates = find_tasks(tasks_module);
    if (candidates.empty()) return;
    find_loops();
    std::vector<Raw> raw = read_bodies(candidates);
    // Those that wait are what counts; the youngest of the others may tell how somebody died.
    std::stable_sort(raw.begin(), raw.end(), [](const Raw& a, const Raw& b) {
      return (a.state != kPending) < (b.state != kPending);
    });
    const auto pending = static_cast<std::size_t>(
        std::count_if(raw.begin(), raw.end(), [](const Raw& one) { return one.state == kPending; }));
    const std::size_t kept = std::min({raw.size(), kMaxTasks, pending + kMaxDoneTasks});
    state_.tasks.left_out += raw.size() - kept;
    raw.resize(kept);
    describe(raw);
    add_handed_over();
  }

 private:
  Address word(Address object, int index) const { return objects_.word(object, index).value_or(0); }

  // Finds the C classes and checks that the layout is theirs. False, with the reason, if tasks cannot be
  // read.
  bool prepare(std::optional<Address> module) {
    const auto known = async_layout(layout_);
    if (!known) {
      state_.tasks.problem = "the coroutines of Python 3." + std::to_string(layout_.minor) + " are not known";
      return false;
    }
    async_ = *known;
    if (!module) return true;  // Python classes only
    const std::array<std::string_view, 2> names = {"Task", "Future"};
    const auto classes = objects_.find(word(*module, 0), names);
    if (!classes[0] || !classes[1]) return true;
    const auto size =
        reader_.read_value<std::int64_t>(*classes[0] + static_cast<Address>(layout_.type_name) + 8);
    const auto checked = own_.async_layouts.find(*classes[0]);
    if (checked != own_.async_layouts.end()) {
      async_ = checked->second;
    } else if (layout_.minor >= 14) {
      apply_asyncio_debug(reader_, word(*module, 1), size.value_or(0), async_);
    }
    if (size != async_.task_size) {
      state_.tasks.problem = "asyncio.Task has another layout than known";
      return false;
    }
    if (own_.async_layouts.size() > kMaxLayouts) own_.async_layouts.clear();
    own_.async_layouts.insert_or_assign(*classes[0], async_);
    task_class_ = *classes[0];
    future_class_ = *classes[1];
    return true;
  }

  // -- which tasks there are -------------------------------------------------------------------------------

  std::vector<Address> find_tasks(Address module) {
    const std::array<std::string_view, 4> names = {"_all_tasks", "_scheduled_tasks", "_eager_tasks",
                                                   "_current_tasks"};
    const auto found = objects_.find(module, names);
    std::vector<Address> tasks;
    for (std::size_t i : {0, 1}) {
      const auto data = found[i] ? objects_.attribute(*found[i], "data") : std::nullopt;  // WeakSet.data
      if (data) add_referents(objects_.set(*data), tasks);
    }
    if (found[2]) {
      for (Address task : objects_.set(*found[2])) tasks.push_back(task);
    }
    if (found[3]) {
      for (const auto& [loop, task] : objects_.dict(*found[3])) {
        current_.insert(task);
        tasks.push_back(task);
      }
    }
    if (async_.task_node >= 0 && task_class_ != 0) {
      for (const ThreadState& thread : threads_) {
        add_list(thread.address + static_cast<Address>(async_.thread_tasks), tasks);
        const auto running =
            reader_.read_value<Address>(thread.address + static_cast<Address>(async_.thread_task));
        if (running && plausible(*running)) current_.insert(*running);
      }
      // Tasks of threads that have ended.
      add_list(interpreter_.address + static_cast<Address>(async_.interpreter_tasks), tasks);
    }
    std::unordered_set<Address> seen;
    std::erase_if(tasks, [&](Address task) { return !plausible(task) || !seen.insert(task).second; });
    if (tasks.size() > kMaxCandidates) {
      state_.tasks.left_out += tasks.size() - kMaxCandidates;
      tasks.resize(kMaxCandidates);
    }
    return tasks;
  }

  // What weak references refer to: the first member of PyWeakReference. Deleted elements of the set are a
  // plain object that has none.
  void add_referents(const std::vector<Address>& references, std::vector<Address>& tasks) const {
    std::vector<std::array<Address, 1>> referents(references.size());
    Batch batch(reader_);
    for (std::size_t i = 0; i < references.size(); ++i) {
      batch.add(references[i] + static_cast<Address>(layout_.after_header(0)),
                std::as_writable_bytes(std::span(referents[i])));
    }
    batch.read();
    for (const auto& one : referents) tasks.push_back(one[0]);
  }

  // A circular list of struct llist_node {next, prev} (Include/internal/pycore_llist.h).
  void add_list(Address head, std::vector<Address>& tasks) const {
    Address previous = head;
    Address node = reader_.read_value<Address>(head).value_or(0);
    for (std::size_t i = 0; i <= kMaxCandidates && node != head; ++i) {
      const auto links = plausible(node) ? reader_.read_value<std::array<Address, 2>>(node) : std::nullopt;
      if (!links || (*links)[1] != previous) {
        if (node != 0) state_.tasks.problem = "the list of tasks changed while it was read";
        return;
      }
      tasks.push_back(node - static_cast<Address>(async_.task_node));
      previous = node;
      node = (*links)[0];
    }
  }

  // Which thread runs which event loop.
  void find_loops() {
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      Address loop = 0;
      if (async_.thread_loop >= 0) {
        loop = reader_.read_value<Address>(threads_[i].address + static_cast<Address>(async_.thread_loop))
                   .value_or(0);
      } else {
        const auto dict =
            reader_.read_value<Address>(threads_[i].address + static_cast<Address>(async_.thread_dict));
        const auto found =
            dict && plausible(*dict) ? objects_.find(*dict, "__asyncio_running_event_loop__") : std::nullopt;
        // Up to 3.11 in a holder that also notes the process it is of.
        if (found) loop = layout_.minor <= 11 ? word(*found, 0) : *found;
      }
      if (plausible(loop)) loops_.emplace(loop, state_.threads[first_ + i].native_tid);
    }
  }

  // -- what each task is -----------------------------------------------------------------------------------

  bool is_c_class(Address type, Address wanted) {
    if (wanted == 0) return false;
    auto [known, fresh] = inherits_.try_emplace({type, wanted});
    if (fresh) known->second = own_.slots.inherits(type, wanted);
    return known->second;
  }
  bool is_c_task(Address object) {
    const auto type = objects_.type_of(object);
    return type && is_c_class(*type, task_class_);
  }
  bool is_task(Address object) {
    return is_c_task(object) || objects_.attribute(object, "_coro").has_value();
  }
  bool is_c_future(Address object) {
    const auto type = objects_.type_of(object);
    return type && is_c_class(*type, future_class_);
  }

  std::vector<Raw> read_bodies(const std::vector<Address>& candidates) {
    const auto size = static_cast<std::size_t>(async_.task_size);
    std::vector<std::byte> bodies(candidates.size() * size);
    Batch batch(reader_);
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      batch.add(candidates[i], std::span(bodies).subspan(i * size, size));
    }
    const std::vector<bool> done = batch.read();
    std::vector<Raw> result;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (!done[i]) continue;
      const auto body = std::span(bodies).subspan(i * size, size);
      const auto type = load<Address>(body, static_cast<std::size_t>(layout_.object_type));
      if (plausible(type) && is_c_class(type, task_class_)) {
        const auto field = [&](int offset) { return load<Address>(body, static_cast<std::size_t>(offset)); };
        Raw raw{.task = candidates[i]};
        raw.loop = field(layout_.after_header(0));
        raw.exception = field(layout_.after_header(4));
        raw.state = load<std::int32_t>(body, static_cast<std::size_t>(async_.future_state));
        raw.waiter = field(async_.task_waiter);
        raw.coroutine = field(async_.task_coroutine);
        raw.name = field(async_.task_name);
        if (raw.state >= kPending && raw.state <= kFinished) result.push_back(raw);
      } else if (auto raw = python_task(candidates[i])) {
        result.push_back(*raw);
      }
    }
    return result;
  }

  // A task of the class written in Python: all in its instance dictionary.
  std::optional<Raw> python_task(Address task) {
    const auto coroutine = objects_.attribute(task, "_coro");
    const auto state = python_state(task);
    if (!coroutine || !state) return std::nullopt;
    Raw raw{.task = task, .state = *state, .coroutine = *coroutine};
    raw.loop = objects_.attribute(task, "_loop").value_or(0);
    raw.name = objects_.attribute(task, "_name").value_or(0);
    raw.waiter = objects_.attribute(task, "_fut_waiter").value_or(0);
    raw.exception = objects_.attribute(task, "_exception").value_or(0);
    return raw;
  }

  // Class attribute until it changes.
  std::optional<std::int32_t> python_state(Address future) {
    const auto state = objects_.attribute(future, "_state");
    if (!state)
      return objects_.attribute(future, "_loop") ? std::optional<std::int32_t>(kPending) : std::nullopt;
    const auto text = objects_.text(*state);
    if (text == "PENDING") return kPending;
    if (text == "CANCELLED") return kCancelled;
    if (text == "FINISHED") return kFinished;
    return std::nullopt;
  }

  std::optional<std::int32_t> future_state(Address future) {
    if (!is_c_future(future)) return python_state(future);
    return reader_.read_value<std::int32_t>(future + static_cast<Address>(async_.future_state));
  }

  void describe(const std::vector<Raw>& raw) {
    std::vector<Address> coroutines;
    std::vector<std::size_t> waiting;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      names_.emplace(raw[i].task, name_of(raw[i].name));
      if (raw[i].state != kPending) continue;
      waiting.push_back(i);
      coroutines.push_back(raw[i].coroutine);
    }
    const std::vector<AwaitChain> chains = follow_awaits(objects_, async_, coroutines);
    std::vector<Address> codes;
    for (const AwaitChain& chain : chains) {
      for (const SuspendedFrame& frame : chain.frames) codes.push_back(frame.code);
    }
    own_.codes.add(objects_, codes);
    std::vector<PythonTask> tasks(raw.size());
    for (std::size_t i = 0; i < raw.size(); ++i) fill(raw[i], tasks[i]);
    for (std::size_t i : waiting) tasks[i].computes = needs_.chained(raw[i].task);
    for (std::size_t k = 0; k < waiting.size(); ++k) {
      add_stack(chains[k], tasks[waiting[k]]);
      add_awaited(raw[waiting[k]], chains[k], tasks[waiting[k]]);
    }
    for (PythonTask& task : tasks) state_.tasks.all.push_back(std::move(task));
  }

  // Coroutines that other threads have handed to a loop (tasks.run_coroutine_threadsafe) and that it has not
  // come to yet: callbacks in its queue, each with the future that the other thread waits for.
  void add_handed_over() {
    for (const auto& [loop, tid] : loops_) {
      const auto ready = objects_.attribute(loop, "_ready");
      if (!ready || objects_.type_name_of(*ready) != "collections.deque") continue;
      for (Address handle : objects_.deque(*ready, kMaxHandedOver)) {
        const auto callback = own_.slots.find(handle, "_callback");
        const Address future = callback ? needs_.handed_over(*callback) : 0;
        if (future == 0) continue;
        PythonTask task;
        task.address = handle;
        task.name = "run_coroutine_threadsafe";
        task.native_tid = tid;
        task.awaits = "ready";
        task.computes = future;
        state_.tasks.all.push_back(std::move(task));
      }
    }
  }

  // Since 3.12 a name that nobody asked for is a mere number.
  std::string name_of(Address name) {
    const SimpleValue value = objects_.value(name);
    if (const auto* text = std::get_if<std::string>(&value)) return *text;
    if (const auto* number = std::get_if<std::int64_t>(&value)) return "Task-" + std::to_string(*number);
    return "";
  }

  void fill(const Raw& raw, PythonTask& task) {
    task.address = raw.task;
    task.name = names_[raw.task];
    if (auto loop = loops_.find(raw.loop); loop != loops_.end()) task.native_tid = loop->second;
    task.done = raw.state != kPending;
    task.current = !task.done && current_.contains(raw.task);
    if (raw.state == kCancelled) {
      task.exception = "CancelledError";
    } else if (task.done && plausible(raw.exception)) {
      const std::string type = objects_.type_name_of(raw.exception);
      if (type != "NoneType") task.exception = std::string(last_part(type));
    }
  }

  void add_stack(const AwaitChain& chain, PythonTask& task) {
    task.problem = chain.problem;
    if (chain.end == ChainEnd::running && !add_running(chain.last, task)) {
      task.problem = "it ran while it was looked at";
    }
    for (auto frame = chain.frames.rbegin(); frame != chain.frames.rend(); ++frame) {
      const Code* code = own_.codes.find(frame->code);
      if (code == nullptr) {
        // What lies further in was reached through this frame.
        task.stack.clear();
        task.problem = "a coroutine has no readable code object";
        continue;
      }
      const auto position = code->position(layout_, frame->start, frame->instruction);
      task.stack.push_back({code->function, code->file, position ? code->line(layout_, *position) : 0,
                            frame->frame, frame->code});
    }
  }

  // The frames of the thread that runs a coroutine, from where it stands out to the coroutine's own.
  bool add_running(Address frame, PythonTask& task) {
    for (std::size_t i = first_; i < state_.threads.size(); ++i) {
      const std::vector<PythonFrame>& frames = state_.threads[i].frames;
      const auto own = std::find_if(frames.begin(), frames.end(),
                                    [&](const PythonFrame& one) { return one.frame == frame; });
      if (own == frames.end()) continue;
      for (auto one = frames.begin(); one <= own; ++one) {
        task.stack.push_back({one->function, one->file, one->line, one->frame, one->code});
      }
      task.current = true;
      if (task.native_tid == 0) task.native_tid = state_.threads[i].native_tid;
      return true;
    }
    return false;
  }

  // -- what it waits for -----------------------------------------------------------------------------------

  void add_awaited(const Raw& raw, const AwaitChain& chain, PythonTask& task) {
    if (task.current || chain.end == ChainEnd::running || chain.end == ChainEnd::finished) return;
    if (chain.end == ChainEnd::not_started) {
      task.awaits = "ready";
      return;
    }
    const bool none = raw.waiter == 0 || objects_.type_name_of(raw.waiter) == "NoneType";
    if (none || future_state(raw.waiter).value_or(kPending) != kPending) {
      if (task.problem.empty()) task.awaits = "ready";
      return;
    }
    task.awaits_object = raw.waiter;
    task.object = object_.read(chain);
    const bool named = task.object.kind != TaskObject::Kind::none;
    task.awaits = named ? task.object.type + "." + task.object.method : awaited(raw.waiter, chain);
    task.wakes_at = wake_time(chain);
    TaskNeeds found = needs_.read(raw.waiter, chain);
    task.needs = std::move(found.needs);
    task.needs_known = found.known;
    task.lock = found.lock;
    task.holds = std::move(found.holds);
  }

  std::string awaited(Address waiter, const AwaitChain& chain) {
    const std::string type = objects_.type_name_of(waiter);
    if (type.empty()) return "";
    if (is_task(waiter)) return "task '" + task_name(waiter) + "'";
    if (last_part(type) == "_GatheringFuture") return gather(waiter);
    const std::string function = library_function(chain);
    if (!function.empty()) return function;
    const std::string callback = callback_name(waiter);
    if (callback == "_outer_done_callback") return "shield";
    if (callback == "_call_check_cancel") return "a call in another thread";  // futures._chain_future
    return std::string(last_part(type));
  }

  std::string task_name(Address task) {
    if (auto known = names_.find(task); known != names_.end()) return known->second;
    if (!is_c_task(task)) return name_of(objects_.attribute(task, "_name").value_or(0));
    return name_of(reader_.read_value<Address>(task + static_cast<Address>(async_.task_name)).value_or(0));
  }

  std::string gather(Address future) {
    const auto list = objects_.attribute(future, "_children");
    const std::vector<Address> children = list ? objects_.list(*list) : std::vector<Address>();
    if (children.empty()) return "gather";
    if (children.size() > children_left_) return "gather of " + std::to_string(children.size());
    children_left_ -= children.size();
    const auto pending = std::count_if(children.begin(), children.end(),
                                       [&](Address child) { return future_state(child) == kPending; });
    return "gather of " + std::to_string(children.size()) + ", " + std::to_string(pending) + " pending";
  }

  // The function of asyncio in which the coroutine is suspended: "Queue.get", "sleep".
  std::string library_function(const AwaitChain& chain) {
    for (std::size_t i = chain.frames.size(); i-- > 0;) {
      const SuspendedFrame& frame = chain.frames[i];
      const Code* code = own_.codes.find(frame.code);
      if (code == nullptr || !is_of_asyncio(code->file)) return "";
      if (last_part(code->function) == "__await__") continue;  // of a Future written in Python
      std::string function = code->function;
      if (layout_.code_qualname < 0) {  // names without class before 3.11
        const auto self = own_.local_of(frame.frame, frame.code, "self");
        const std::string type = self ? objects_.type_name_of(*self) : "";
        if (!type.empty()) function = std::string(last_part(type)) + "." + function;
      }
      if (function.ends_with("._aexit"))
        return function.substr(0, function.size() - 6) + "__aexit__";  // 3.14
      const std::string_view bare = last_part(function);
      if (bare == function && bare.starts_with('_') && !bare.starts_with("__")) return function.substr(1);
      return function;
    }
    return "";
  }

  // The earliest time at which a timer that one of the coroutines has set wakes the task.
  std::optional<double> wake_time(const AwaitChain& chain) {
    std::optional<double> earliest;
    const auto consider = [&](std::optional<double> when) {
      if (when && (!earliest || *when < *earliest)) earliest = when;
    };
    for (const SuspendedFrame& frame : chain.frames) {
      const Code* code = own_.codes.find(frame.code);
      if (code == nullptr) return std::nullopt;
      if (is_of_asyncio(code->file)) consider(own_timer(frame, *code));
      for (const Address value : stack_values(objects_, frame, code->named_slots)) consider(timeout(value));
    }
    return earliest;
  }

  // sleep() and, up to 3.11, wait_for() and _wait() keep their TimerHandle in a local.
  std::optional<double> own_timer(const SuspendedFrame& frame, const Code& code) {
    const std::string_view name = code.function == "sleep" ? "h" : "timeout_handle";
    if (name != "h" && code.function != "wait_for" && code.function != "_wait") return std::nullopt;
    const auto handle = own_.local_of(frame.frame, frame.code, name);
    const auto when = handle ? own_.slots.find(*handle, "_when") : std::nullopt;
    return when ? seconds(*when) : std::nullopt;
  }

  // A block `async with asyncio.timeout()` keeps the bound __aexit__ of its Timeout on the value stack,
  // since 3.14 the Timeout itself.
  std::optional<double> timeout(Address value) {
    const std::string type = objects_.type_name_of(value);
    if (type == "method") {
      value = word(value, 1);
      if (objects_.type_name_of(value) != "Timeout") return std::nullopt;
    } else if (type != "Timeout") {
      return std::nullopt;
    }
    const auto when = objects_.attribute(value, "_when");
    return when ? seconds(*when) : std::nullopt;
  }

  std::optional<double> seconds(Address number) {
    const SimpleValue value = objects_.value(number);
    const auto* found = std::get_if<double>(&value);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }

  // The Python function that was the first to ask for a future's end.
  Address first_callback(Address future) {
    if (!is_c_future(future)) return 0;
    const Address callback = word(future, 1);
    return objects_.type_name_of(callback) == "function" ? callback : 0;
  }

  std::string callback_name(Address future) {
    const Address callback = first_callback(future);
    return callback != 0 ? function_name(objects_, callback).value_or("") : "";
  }

  PythonProcess::State& own_;
  Objects& objects_;
  const Layout& layout_;
  const memory::Reader& reader_;
  const Interpreter& interpreter_;
  const std::vector<ThreadState>& threads_;
  const std::size_t first_;
  PythonState& state_;
  TaskObjectReader object_;
  TaskNeedsReader needs_;
  AsyncLayout async_;
  Address task_class_ = 0;
  Address future_class_ = 0;
  std::size_t children_left_ = kMaxChildren;
  std::unordered_map<Address, int> loops_;
  std::unordered_set<Address> current_;
  std::unordered_map<Address, std::string> names_;
  std::map<std::pair<Address, Address>, bool> inherits_;
};

}  // namespace

void PythonProcess::State::add_asyncio_tasks(const Interpreter& interpreter,
                                             const std::vector<ThreadState>& threads, std::size_t first,
                                             PythonState& state) {
  AsyncioTasks(*this, interpreter, threads, first, state).read();
}

}  // namespace hangtrace::python
