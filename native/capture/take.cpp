#include <algorithm>
#include <cerrno>
#include <chrono>

#include "capture/look.hpp"
#include "capture/tasks.hpp"

namespace hangtrace::capture {

namespace {

// Deeper stacks are read on while they are unwound. Those of main threads mostly are deep, others seldom. The
// last bound keeps a process of very many threads small.
constexpr std::size_t main_stack_bytes = 32 << 10;
constexpr std::size_t stack_bytes = 8 << 10;
constexpr std::size_t stack_bytes_of_process = 32 << 20;

// What takes longer between a first look at a thread's state and the rest needs another one.
constexpr std::chrono::microseconds moment{1000};

class Taker {
 public:
  Taker(Look& look, const Options& options)
      : look_(look), options_(options), known_(*look.known), threads_(look.sampled.process.threads) {}

  void copy_memory() {
    look_.stacks.resize(threads_.size());
    look_.calls.resize(threads_.size());
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      plan_futex(i);
      plan_stack(i);
    }
    read_plan();
  }

  void read_python() {
    python::PythonProcess* const python = known_.python();
    if (python == nullptr) {
      return;
    }
    look_.python = python->read(look_.thread_ids);
    Python facts;
    if (!look_.python) {
      facts.version = python->version();
      facts.problem = python->problem();
      look_.sampled.process.python = std::move(facts);
      return;
    }
    facts.version = look_.python->version;
    facts.layout_from = look_.python->layout_from;
    facts.free_threaded = look_.python->free_threaded;
    facts.problem = look_.python->problem;
    facts.thread_count = look_.python->threads.size();
    if (!look_.python->gils.empty()) {
      const python::Gil& gil = look_.python->gils.front();
      facts.gil =
          Gil{gil.address, gil.locked, gil.holder_tid != 0 ? std::optional(gil.holder_tid) : std::nullopt};
    }
    look_.sampled.process.python = std::move(facts);
    for (const python::PythonThread& thread : look_.python->threads) {
      describe_lock(*python, thread);
      read_locals(*python, thread);
      read_what_it_may_do(*python, thread);
    }
    read_task_locals(*python);
    for (const python::PythonTask& task : look_.python->tasks.all) {
      const bool waits = task.kind == python::TaskKind::asyncio && !task.done && !task.current;
      look_.task_lets_go.push_back(waits ? python->lets_go(task) : std::string());
    }
  }

 private:
  struct Planned {
    Address from;
    std::size_t size;
    std::optional<std::size_t> stack_of;  // thread index
  };

  // A piece must not cross into what is not mapped, or the whole of it is lost.
  void plan(Address from, Address to, std::optional<std::size_t> stack_of = std::nullopt) {
    const proc::Mapping* const mapping = proc::find_mapping(known_.mappings(), stack_of ? from : to - 1);
    if (mapping == nullptr || !mapping->readable) {
      return;
    }
    const Address begin = std::max(from, mapping->start);
    const Address end = std::min(to, mapping->end);
    if (begin < end) {
      planned_.push_back({begin, end - begin, stack_of});
    }
  }

  void plan_stack(std::size_t i) {
    if (const auto sp = threads_[i].stack_pointer) {
      const std::size_t size = wanted_stack_bytes(i);
      plan(*sp, *sp + std::min(size, stack_bytes_of_process / threads_.size()), i);
    }
  }

  std::size_t wanted_stack_bytes(std::size_t i) const {
    if (known_.kept_stack(threads_[i]) != nullptr) {
      return look_.calls[i] ? lock_frames_bytes : 0;
    }
    return threads_[i].tid == look_.sampled.process.pid ? main_stack_bytes : stack_bytes;
  }

  void plan_futex(std::size_t i) {
    Thread& thread = threads_[i];
    if (!thread.syscall) {
      return;
    }
    if (locks::is_restart(*thread.syscall)) {
      decode_restart(thread);
    }
    look_.calls[i] = locks::decode_futex(*thread.syscall, thread.arguments, known_.reader());
    if (look_.calls[i]) {
      const Address word = look_.calls[i]->word;
      const proc::Mapping* const mapping = proc::find_mapping(known_.mappings(), word);
      if (mapping != nullptr && mapping->readable) {
        const Address begin = std::max(word - std::min<Address>(word, locks::window_before), mapping->start);
        const Address end = std::min(word + locks::window_after, mapping->end);
        planned_.push_back({begin, end - begin, std::nullopt});
      }
    }
  }

  void decode_restart(Thread& thread) {
    // The stub of the C library's syscall() has no frame: the return address lies on top of the stack.
    const auto return_address = known_.reader().read_value<Address>(*thread.stack_pointer);
    if (const auto number =
            locks::restarted_call(*thread.program_counter, return_address.value_or(0), known_.reader())) {
      thread.syscall = number;
    }
  }

  void read_plan() {
    std::size_t size = 0;
    for (const Planned& planned : planned_) {
      size += planned.size;
    }
    look_.stack_bytes = std::make_unique_for_overwrite<std::byte[]>(size);
    std::vector<memory::Piece> pieces;
    pieces.reserve(planned_.size());
    std::byte* next = look_.stack_bytes.get();
    for (const Planned& planned : planned_) {
      pieces.push_back({planned.from, {next, planned.size}});
      next += planned.size;
    }
    const std::vector<bool> done = known_.reader().read_batch(pieces);
    look_.copies = std::make_unique<memory::OverlayReader>(known_.reader());
    for (std::size_t i = 0; i < planned_.size(); ++i) {
      if (!done[i]) {
        continue;
      }
      if (planned_[i].stack_of) {
        look_.stacks[*planned_[i].stack_of] = pieces[i].into;
      } else {
        look_.copies->add(planned_[i].from, {pieces[i].into.begin(), pieces[i].into.end()});
      }
    }
  }

  bool is_gil(Address word) const {
    return std::ranges::any_of(look_.python->gils, [word](const python::Gil& gil) {
      return word >= gil.address && word < gil.address + gil.size;
    });
  }

  // Every Python thread asleep on a futex that is not the GIL may wait for a lock object. Whether it does,
  // the names of its native frames say later; its owner must be read now.
  void describe_lock(python::PythonProcess& python, const python::PythonThread& waiter) {
    const Thread* const thread = find_thread(look_.sampled.process, waiter.native_tid);
    if (thread == nullptr || waiter.frames.empty()) {
      return;
    }
    const auto& call = look_.calls[static_cast<std::size_t>(thread - threads_.data())];
    if (!call || is_gil(call->word)) {
      return;
    }
    std::vector<int> not_asleep;
    for (const Thread& other : threads_) {
      if (other.running) {
        not_asleep.push_back(other.tid);
      }
    }
    look_.python_locks.emplace(waiter.native_tid,
                               python.describe_lock(*look_.python, waiter, call->word, not_asleep));
  }

  // What a thread that is blocked may do when that is over.
  void read_what_it_may_do(python::PythonProcess& python, const python::PythonThread& thread) {
    const Thread* const found = find_thread(look_.sampled.process, thread.native_tid);
    if (found == nullptr || !found->syscall) {
      return;
    }
    Thread& here = threads_[static_cast<std::size_t>(found - threads_.data())];
    const auto& futex = look_.calls[static_cast<std::size_t>(found - threads_.data())];
    if (!futex || !is_gil(futex->word)) {
      here.lets_go = python.lets_go(thread);
    }
  }

  void read_task_locals(python::PythonProcess& python) {
    if (options_.named_locals.empty()) {
      return;
    }
    for (const python::PythonTask& task : look_.python->tasks.all) {
      std::vector<NamedValue>& values = look_.task_values.emplace_back();
      for (const python::TaskFrame& frame : task.stack) {
        const auto wanted = options_.named_locals.find(frame.function);
        if (wanted == options_.named_locals.end()) {
          continue;
        }
        for (const std::string& name : wanted->second) {
          values.push_back({wanted->first, name, python.task_value(frame, name)});
        }
      }
    }
  }

  void read_locals(python::PythonProcess& python, const python::PythonThread& source) {
    const Thread* const found = find_thread(look_.sampled.process, source.native_tid);
    if (found == nullptr || options_.named_locals.empty()) {
      return;
    }
    Thread& thread = threads_[static_cast<std::size_t>(found - threads_.data())];
    for (std::size_t i = 0; i < source.frames.size(); ++i) {
      const auto wanted = options_.named_locals.find(source.frames[i].function);
      if (wanted == options_.named_locals.end()) {
        continue;
      }
      for (const std::string& name : wanted->second) {
        thread.named_values.push_back({wanted->first, name, python.local_value(source, i, name)});
      }
    }
  }

  Look& look_;
  const Options& options_;
  Known& known_;
  std::vector<Thread>& threads_;
  std::vector<Planned> planned_;
};

}  // namespace

void take(Look& look, const Options& options, const std::string& proc_root) {
  Sampled& sampled = look.sampled;
  Numbering numbering = thread_numbering(proc_root, sampled);
  look.thread_ids = std::move(numbering.ids);
  look.pid_namespace = std::move(numbering.pid_namespace);
  if (options.python && !look.known->python_looked_for()) {
    const auto began = std::chrono::steady_clock::now();
    look.known->python();
    if (std::chrono::steady_clock::now() - began > moment) {
      sample_again(sampled);
    }
  }
  look.known->pages().begin();
  Taker taker(look, options);
  taker.copy_memory();
  if (options.python) {
    taker.read_python();
  }
  mark_moved(sampled);
  add_tasks(look);
  look.known->pages().forget();
  errno = ENOENT;
  const auto stat = proc::read_process_stat(proc_root, sampled.process.pid);
  const Error error = stat ? Error::none : error_of(errno);
  if (!stat || identity_of(*stat) != sampled.identity) {
    sampled.process.exec_changed = stat.has_value();
    look.known.reset();
    look.python.reset();
    sampled.process.python.reset();
    sampled.process.tasks.clear();
    if (stat) {
      sampled.process.notes.emplace_back("it started another program while it was looked at");
    } else {
      sampled.process.error = error;
    }
    if (error == Error::gone) {
      sampled.process.notes.emplace_back("it ended while it was looked at");
    }
  }
}

}  // namespace hangtrace::capture
