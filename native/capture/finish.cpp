#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "capture/look.hpp"
#include "capture/merge.hpp"
#include "capture/running.hpp"
#include "capture/sharers.hpp"
#include "capture/workers.hpp"
#include "elf/process_modules.hpp"
#include "locks/decode.hpp"
#include "locks/once.hpp"
#include "locks/parked.hpp"
#include "unwind/naming.hpp"
#include "unwind/nap_loops.hpp"

namespace hangtrace::capture {

namespace {

FoundBy found_by(const unwind::Frame& frame, const unwind::FrameName& name) {
  if (name.by_call_site) {
    return FoundBy::call_site;
  }
  switch (frame.found_by) {
    case unwind::FoundBy::leaf:
      return FoundBy::leaf;
    case unwind::FoundBy::cfi:
      return FoundBy::cfi;
    case unwind::FoundBy::prologue:
      return FoundBy::prologue;
    case unwind::FoundBy::scan:
      return FoundBy::scan;
  }
  return FoundBy::cfi;
}

// As this process has it mapped: one module stands for all copies of a file.
std::string module_name(const Look& look, const unwind::Frame& frame, const unwind::FrameName& name) {
  if (name.jit) {
    return std::string(jit_module);
  }
  const proc::Mapping* const mapping =
      frame.module != nullptr ? proc::find_mapping(look.known->mappings(), frame.pc) : nullptr;
  return mapping != nullptr && !mapping->path.empty() ? mapping->path
         : frame.module != nullptr                    ? frame.module->path()
                                                      : std::string();
}

std::vector<locks::FrameHint> hints(const Thread& thread, const unwind::Stack& stack) {
  std::vector<locks::FrameHint> hints;
  Address begin = thread.stack_pointer.value_or(0);
  for (std::size_t i = 0; i < stack.frames.size(); ++i) {
    const Address end = stack.frames[i].sp;
    hints.push_back({thread.frames[i].function, thread.frames[i].module, begin, end, stack.frames[i].pc});
    begin = end;
  }
  return hints;
}

const char* owner_source(python::LockOwnerFrom from) {
  switch (from) {
    case python::LockOwnerFrom::nowhere:
      return "";
    case python::LockOwnerFrom::rlock_owner:
      return "rlock_owner";
    case python::LockOwnerFrom::module_lock:
      return "_ModuleLock.owner";
    case python::LockOwnerFrom::joined_thread:
      return "Thread.join";
    case python::LockOwnerFrom::with_block:
      return "bound __exit__ in a with block";
    case python::LockOwnerFrom::running_block:
      return "bound __exit__ in a with block of a thread that runs";
    case python::LockOwnerFrom::shared_rlock:
    case python::LockOwnerFrom::shared_lock:
      return "SemLock.last_tid";
  }
  return "";
}

void apply_python_lock(locks::Lock& lock, const python::LockFacts& facts) {
  if (facts.object == 0) {
    lock.problem = facts.problem;
    return;
  }
  const bool joins = facts.owner_from == python::LockOwnerFrom::joined_thread;
  lock.kind = joins             ? locks::Kind::join
              : facts.recursive ? locks::Kind::python_rlock
                                : locks::Kind::python_lock;
  lock.address = facts.object;
  lock.python_object = facts.object;
  lock.problem = facts.problem;
  lock.owner_function = facts.owner_function;
  if (facts.owner_tid != 0) {
    lock.owner = facts.owner_tid;
    lock.owner_exact = facts.owner_from != python::LockOwnerFrom::with_block &&
                       facts.owner_from != python::LockOwnerFrom::running_block;
    lock.owner_from = owner_source(facts.owner_from);
  } else if (facts.owner_from == python::LockOwnerFrom::rlock_owner && lock.problem.empty()) {
    lock.problem = "owner thread does not exist in this process";
  }
}

// Seconds since a thread, of this process or another one, was started.
std::optional<double> age_of(const Look& look, int tid, const std::string& proc_root) {
  std::optional<std::uint64_t> start_ticks;
  if (const Thread* const own = find_thread(look.sampled.process, tid)) {
    start_ticks = own->start_ticks;
  } else if (const auto stat = proc::read_process_stat(proc_root, tid)) {
    start_ticks = stat->start_ticks;
  }
  timespec now{};
  if (!start_ticks || clock_gettime(CLOCK_BOOTTIME, &now) != 0) {
    return std::nullopt;
  }
  const double since_boot = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
  return since_boot - static_cast<double>(*start_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Who of another process has taken a semaphore of multiprocessing. Fork leaves its object at the same
// address; of one that was started otherwise it is known inside a `with` block. 0: nobody, or several say so.
int taken_elsewhere(const locks::Lock& lock, const python::SharedSemaphore& wanted, const Look& own,
                    std::span<const Look> all) {
  int found = 0;
  for (const Look& other : all) {
    python::PythonProcess* const python = other.known && other.python ? other.known->python() : nullptr;
    if (&other == &own || python == nullptr || !lock.shared_key) {
      continue;
    }
    const auto is_it = [&](const python::SharedSemaphore& one) {
      if (one.count <= 0 || one.recursive != wanted.recursive || one.most != wanted.most) {
        return false;
      }
      const proc::Mapping* const mapping = other.known->mapping_at(one.handle);
      return mapping != nullptr && locks::shared_key_in(one.handle, *mapping) == lock.shared_key;
    };
    auto there = python->shared_semaphore(wanted.object);
    if (!there || !is_it(*there)) {
      const std::vector<python::SharedSemaphore> entered = python->entered_semaphores(*other.python);
      const auto it = std::ranges::find_if(entered, is_it);
      there = it != entered.end() ? std::optional(*it) : std::nullopt;
    }
    if (!there) {
      continue;
    }
    for (const python::PythonThread& thread : other.python->threads) {
      if (thread.ident == there->last_ident && thread.native_tid != 0) {
        if (found != 0) {
          return 0;
        }
        found = thread.native_tid;
      }
    }
  }
  return found;
}

void find_taker(locks::Lock& lock, const python::LockFacts& facts, const Look& own,
                std::span<const Look> all) {
  const python::SharedSemaphore& semaphore = *facts.shared;
  const bool lockable = semaphore.recursive || (semaphore.most == 1 && facts.shared_lock);
  const int elsewhere = lockable ? taken_elsewhere(lock, semaphore, own, all) : 0;
  if ((facts.owner_tid == 0) == (elsewhere == 0)) {
    return;
  }
  lock.owner = facts.owner_tid != 0 ? facts.owner_tid : elsewhere;
  lock.owner_exact = semaphore.recursive;
  lock.owner_from = owner_source(python::LockOwnerFrom::shared_lock);
}

// Semaphores of multiprocessing: reads the memory of all processes, so nobody else may be at it.
void find_takers(Look& look, std::span<const Look> all, const std::string& proc_root) {
  for (Thread& thread : look.sampled.process.threads) {
    const auto facts = look.python_locks.find(thread.tid);
    const bool shared = facts != look.python_locks.end() && facts->second.shared;
    if (shared && thread.lock && thread.lock->kind == locks::Kind::semaphore) {
      find_taker(*thread.lock, facts->second, look, all);
      if (thread.lock->owner) {
        thread.lock->owner_age_s = age_of(look, *thread.lock->owner, proc_root);
      }
    }
  }
}

bool apply_gil(locks::Lock& lock, const python::PythonState& python) {
  for (const python::Gil& gil : python.gils) {
    if (lock.call.word < gil.address || lock.call.word >= gil.address + gil.size) {
      continue;
    }
    lock.kind = locks::Kind::gil;
    lock.address = gil.address;
    lock.owner.reset();
    lock.owner_exact = false;
    lock.owner_from.clear();
    lock.problem.clear();
    if (gil.locked && gil.holder_tid != 0) {
      lock.owner = gil.holder_tid;
      lock.owner_from = "gil.last_holder";
      lock.owner_exact = true;
    } else {
      lock.problem = gil.locked ? "its holder is no thread of this process" : "released meanwhile";
    }
    return true;
  }
  return false;
}

class LockDecoder {
 public:
  LockDecoder(Look& look, std::span<const Look> all, const std::string& proc_root, SharersOf& sharers)
      : look_(look),
        proc_root_(proc_root),
        view_{*look.copies,
              [&look](Address address) { return look.known->mapping_at(address); },
              [&look](int tid) { return thread_here(look, tid); },
              [&look, all, proc_root](int tid) { return thread_anywhere(look, all, proc_root, tid); },
              look.pid_namespace.empty(),
              look.known->c_library(),
              0,
              [&look, &sharers](const locks::SharedKey& key, bool named) {
                return sharers.of(look, key, named);
              },
              [&sharers](int tid, const locks::SharedKey& key) { return sharers.maps(tid, key); }} {}

  void decode(std::size_t i) {
    Thread& thread = look_.sampled.process.threads[i];
    if (!look_.calls[i]) {
      return;
    }
    const std::vector<locks::FrameHint> frames = hints(thread, look_.unwound[i]);
    view_.waiter = thread.tid;
    locks::Lock lock = locks::decode(*look_.calls[i], frames, view_);
    if (look_.python && apply_gil(lock, *look_.python)) {
      thread.lock = std::move(lock);
      return;
    }
    const auto facts = look_.python_locks.find(thread.tid);
    if (facts != look_.python_locks.end()) {
      // Without names of native frames the object itself must say that it is this futex's.
      const bool unnamed = lock.kind == locks::Kind::semaphore || lock.kind == locks::Kind::futex;
      if (facts->second.shared) {
        if (unnamed) {
          lock.kind = locks::Kind::semaphore;
          lock.problem = facts->second.problem;
        }
      } else if (lock.kind == locks::Kind::python_lock || (unnamed && facts->second.object != 0)) {
        apply_python_lock(lock, facts->second);
      }
    }
    if (lock.owner) {
      lock.owner_age_s = age_of(look_, *lock.owner, proc_root_);
    }
    thread.lock = std::move(lock);
  }

  // When all locks are decoded.
  void confirm() {
    std::vector<locks::Waiter> waiters;
    for (Thread& thread : look_.sampled.process.threads) {
      waiters.push_back({thread.tid, thread.lock ? &*thread.lock : nullptr});
    }
    locks::confirm_parked(waiters);
  }

  // When all locks are decoded: whom threads wait for that wait for an initialisation.
  void find_initialisers() {
    std::vector<Thread>& threads = look_.sampled.process.threads;
    const auto waits = [](const Thread& thread) {
      return thread.lock && thread.lock->kind == locks::Kind::once;
    };
    if (std::ranges::none_of(threads, waits)) {
      return;
    }
    std::vector<std::vector<locks::FrameHint>> frames;
    std::vector<locks::StackOf> stacks;
    for (std::size_t i = 0; i < threads.size(); ++i) {
      frames.push_back(hints(threads[i], look_.unwound[i]));
      stacks.push_back({threads[i].tid, frames.back(), threads[i].lock ? &*threads[i].lock : nullptr});
    }
    for (std::size_t i = 0; i < threads.size(); ++i) {
      if (waits(threads[i])) {
        locks::find_initialiser(*threads[i].lock, frames[i], stacks, *look_.copies);
      }
    }
  }

 private:
  static std::optional<int> translate(const Look& look, int tid) {
    const auto it = look.thread_ids.find(tid);
    return it == look.thread_ids.end() ? std::nullopt : std::optional(it->second);
  }

  static std::optional<int> thread_here(const Look& look, int tid) {
    if (const auto known = translate(look, tid)) {
      return known;
    }
    // One that was started after the threads were listed is no missing owner.
    return look.pid_namespace.empty() && look.sampled.tasks->stat(tid) ? std::optional(tid) : std::nullopt;
  }

  static std::optional<int> thread_anywhere(const Look& look, std::span<const Look> all,
                                            const std::string& proc_root, int tid) {
    if (look.pid_namespace.empty()) {
      std::error_code error;
      const bool exists = std::filesystem::exists(proc_root + "/" + std::to_string(tid), error);
      return exists ? std::optional(tid) : std::nullopt;
    }
    // In a pid namespace of its own only the processes we look at can be counted through.
    for (const Look& other : all) {
      if (other.pid_namespace == look.pid_namespace) {
        if (const auto known = translate(other, tid)) {
          return known;
        }
      }
    }
    return std::nullopt;
  }

  Look& look_;
  const std::string& proc_root_;
  locks::ProcessView view_;
};

Frame python_frame(const python::PythonFrame& source) {
  Frame frame;
  frame.kind = FrameKind::python;
  frame.function = source.function;
  frame.file = source.file;
  frame.line = source.line;
  frame.found_by = FoundBy::python;
  return frame;
}

// Names frames in parts of the evaluation loop that have lost their name; false if there is none.
bool name_eval_parts(Thread& thread, const std::vector<unwind::Frame>& unwound, EvalParts& parts) {
  bool any = false;
  for (std::size_t i = 0; i < std::min(unwound.size(), thread.frames.size()); ++i) {
    Frame& frame = thread.frames[i];
    if (frame.function.empty() && unwound[i].module != nullptr &&
        parts.contains(*unwound[i].module, unwound[i].va)) {
      frame.function = "_PyEval_EvalFrameDefault.cold";
      any = true;
    }
  }
  return any;
}

void add_python(Look& look, EvalParts& parts) {
  std::vector<Thread>& threads = look.sampled.process.threads;
  for (const python::PythonThread& source : look.python->threads) {
    const Thread* const found = find_thread(look.sampled.process, source.native_tid);
    if (found == nullptr) {
      continue;
    }
    const auto i = static_cast<std::size_t>(found - threads.data());
    Thread& thread = threads[i];
    thread.ident = source.ident;
    thread.holds_gil = source.holds_gil;
    if (!source.name.empty()) {
      thread.python_name = source.name;
    }
    thread.python_problem = source.problem.empty() && source.left_out > 0
                                ? std::to_string(source.left_out) +
                                      " frames left out between the innermost and the outermost ones"
                                : source.problem;
    std::vector<PythonFrame> frames;
    for (const python::PythonFrame& frame : source.frames) {
      frames.push_back({python_frame(frame), frame.entry});
    }
    if (frames.empty() || merge(thread.frames, frames)) {
      continue;
    }
    const auto& unwound = look.unwound[i].frames;
    if (name_eval_parts(thread, unwound, parts) && merge(thread.frames, frames)) {
      continue;
    }
    std::vector<Frame>& into = thread.frames.empty() ? thread.frames : thread.unmerged_python;
    for (PythonFrame& frame : frames) {
      into.push_back(std::move(frame.frame));
    }
  }
}

// Makes frames of what was unwound, decodes locks, merges Python frames: of one process, beside which others
// are at it.
void describe(Look& look, std::span<const Look> all, std::vector<std::vector<unwind::FrameName>>& names,
              const std::string& proc_root, SharersOf& sharers, EvalParts& parts) {
  std::vector<Thread>& threads = look.sampled.process.threads;
  LockDecoder lock_decoder(look, all, proc_root, sharers);
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const std::vector<unwind::Frame>& unwound = look.unwound[i].frames;
    threads[i].frames.reserve(unwound.size());
    for (std::size_t k = 0; k < unwound.size(); ++k) {
      Frame frame;
      frame.module = module_name(look, unwound[k], names[i][k]);
      frame.address = unwound[k].pc;
      frame.found_by = found_by(unwound[k], names[i][k]);
      frame.function = std::move(names[i][k].function);
      if (frame.function.empty() && unwound[k].signal_frame) {
        frame.function = "<signal handler called>";  // the C library's trampoline seldom has a symbol
      }
      threads[i].frames.push_back(std::move(frame));
    }
    lock_decoder.decode(i);
  }
  lock_decoder.confirm();
  lock_decoder.find_initialisers();
  if (look.python) {
    add_python(look, parts);
  }
  for (const std::string& problem : look.known->modules().problems()) {
    look.sampled.process.notes.push_back(problem);
  }
}

// Of threads that nap: what the loop around it calls. Python's own loops are read from its source.
void add_nap_loops(Look& look, unwind::TableCache& tables) {
  std::vector<Thread*> threads;
  std::vector<const unwind::Stack*> stacks;
  for (std::size_t i = 0; i < look.sampled.process.threads.size(); ++i) {
    Thread& thread = look.sampled.process.threads[i];
    const bool naps = thread.syscall == SYS_nanosleep || thread.syscall == SYS_clock_nanosleep;
    if (naps && !look.python && !look.unwound[i].frames.empty()) {
      threads.push_back(&thread);
      stacks.push_back(&look.unwound[i]);
    }
  }
  if (stacks.empty()) {
    return;
  }
  auto called = unwind::called_around_naps(stacks, look.known->modules(), tables);
  for (std::size_t i = 0; i < threads.size(); ++i) {
    threads[i]->nap_loop = std::move(called[i]);
  }
}

}  // namespace

void finish(std::span<Look> looks, const std::string& proc_root, EvalParts& parts, unwind::TableCache& tables,
            std::size_t workers) {
  std::vector<unwind::NamingJob> jobs;
  std::vector<Look*> named;
  const std::vector<SampledLeaves> leaves = leaves_of(looks);
  for (Look& look : looks) {
    if (look.known && look.copies) {
      jobs.push_back({&look.known->modules(), look.unwound});
      named.push_back(&look);
    }
  }
  for (const SampledLeaves& sampled : leaves) {
    jobs.push_back({&sampled.look->known->modules(), sampled.stacks});
  }
  auto names = unwind::name_stacks(jobs);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    describe_samples(leaves[i], names[named.size() + i]);
  }
  for (Look* const look : named) {
    add_nap_loops(*look, tables);
  }
  SharersOf sharers(looks, proc_root);
  share_out(
      named.size(), workers, [](std::size_t) {},
      [&](std::size_t job) { describe(*named[job], looks, names[job], proc_root, sharers, parts); });
  for (Look* const look : named) {
    find_takers(*look, looks, proc_root);
  }
}

}  // namespace hangtrace::capture
