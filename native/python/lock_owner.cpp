#include <algorithm>
#include <array>

#include "python/callables.hpp"
#include "python/names.hpp"
#include "python/process_state.hpp"

// Which Python lock a thread sleeps on, and who holds it. Modules/_threadmodule.c:
//   lock   up to 3.13.0  {head, PyThread_type_lock lock_lock, PyObject *in_weakreflist, char locked}
//          since 3.13.1  {head, PyMutex lock}
//   RLock  up to 3.13    {head, PyThread_type_lock rlock_lock, unsigned long rlock_owner, unsigned long
//   rlock_count}
//          since 3.14    {head, _PyRecursiveMutex {PyMutex mutex; unsigned long long thread; size_t level}}
//   SemLock {head, SEM_HANDLE handle, unsigned long last_tid, int count, int maxvalue, int kind, char *name}
//          of Modules/_multiprocessing; kind 0 is an RLock's
// On Linux a PyThread_type_lock is a sem_t *, and its waiters sleep on the start of the sem_t.
namespace hangtrace::python {
namespace {

constexpr std::size_t kSearchedFrames = 4;  // the lock is among the values of one of the innermost frames
constexpr std::size_t kMaxSearchedSlots = 4096;
constexpr Address kLowest = 0x10000;     // no byte of a program lies below
constexpr std::size_t kMaxNames = 64;    // that a function uses
constexpr std::size_t kMaxEntered = 64;  // semaphores in whose `with` blocks threads stand
constexpr std::string_view kSimpleQueue = "_queue.SimpleQueue";
constexpr std::string_view kSemLock = "_multiprocessing.SemLock";

std::optional<SharedSemaphore> read_shared(const memory::Reader& reader, const Layout& layout,
                                           Address object) {
  struct {
    Address handle;
    std::uint64_t last_tid;
    std::int32_t count, most, kind;
  } words{};
  if (!reader.read(object + static_cast<Address>(layout.after_header(0)),
                   std::as_writable_bytes(std::span(&words, 1)))) {
    return std::nullopt;
  }
  return SharedSemaphore{object, words.handle, words.last_tid, words.count, words.most, words.kind == 0};
}

using Words = std::array<Address, 4>;  // of an object: those after the header

struct Found {
  Address object = 0;
  bool parked = false;  // a PyMutex, not a semaphore
};

class LockSearch {
 public:
  LockSearch(PythonProcess::State& own, const PythonState& state, const PythonThread& waiter)
      : own_(own), objects_(own.objects), state_(state), waiter_(waiter) {}

  LockFacts describe(Address futex, std::span<const int> not_asleep) {
    if (import_in_progress() || join()) return std::move(facts_);
    auto found = among_values(futex);
    if (!found) found = parked_on(futex);
    if (!found) {
      facts_.object = bare_mutex(futex);
      facts_.problem = facts_.object != 0 ? "CPython records no owner of a PyMutex"
                                          : "the lock is not among the values of the innermost frames";
      return std::move(facts_);
    }
    facts_.object = found->object;
    facts_.type_name = objects_.type_name_of(found->object);
    facts_.recursive = is_rlock(facts_.type_name);
    if (facts_.type_name == kSimpleQueue) {
      facts_.problem = "whoever puts something into the queue wakes it";
    } else if (facts_.type_name == kSemLock) {
      shared_owner(found->object);
    } else if (facts_.recursive) {
      rlock_owner(*found);
    } else {
      with_owner(*found, not_asleep);
    }
    return std::move(facts_);
  }

 private:
  static bool is_plain(std::string_view type) { return type == "_thread.lock"; }
  static bool is_rlock(std::string_view type) { return type == "_thread.RLock"; }
  // Also what has its lock where a lock object has it: queue.SimpleQueue, multiprocessing's semaphores.
  bool is_lock(Address object) {
    const TypeInfo* type = objects_.type_info_of(object);
    return type != nullptr && (is_plain(type->name) || is_rlock(type->name) || type->name == kSimpleQueue ||
                               type->name == kSemLock);
  }

  std::optional<Address> word(Address object, int index) const { return objects_.word(object, index); }

  std::vector<std::optional<Words>> words(const std::vector<Address>& objects) const {
    std::vector<Words> values(objects.size());
    Batch batch(own_.reader);
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const Address at = plausible(objects[i]) ? objects[i] + own_.layout().after_header(0) : 0;
      batch.add(at, std::as_writable_bytes(std::span(values[i])));
    }
    const std::vector<bool> done = batch.read();
    std::vector<std::optional<Words>> result(objects.size());
    for (std::size_t i = 0; i < objects.size(); ++i) {
      if (done[i]) result[i] = values[i];
    }
    return result;
  }

  void name_holder(const PythonThread& thread, const PythonFrame& frame, LockOwnerFrom from) {
    name_owner(thread.ident, from);
    facts_.owner_function = frame.function;
    facts_.owner_file = frame.file;
    facts_.owner_line = frame.line;
    facts_.problem.clear();
  }

  void name_owner(std::uint64_t ident, LockOwnerFrom from) {
    facts_.owner_ident = ident;
    facts_.owner_from = from;
    for (const PythonThread& thread : state_.threads) {
      if (thread.ident == ident) facts_.owner_tid = thread.native_tid;
    }
  }

  // An attribute of the local `self` of a frame that holds a thread's ident.
  std::optional<std::int64_t> ident_attribute(Address self, std::string_view name) {
    auto value = objects_.attribute(self, name);
    if (!value) return std::nullopt;
    const SimpleValue ident = objects_.value(*value);
    const auto* number = std::get_if<std::int64_t>(&ident);
    return number != nullptr && *number != 0 ? std::optional(*number) : std::nullopt;
  }

  // Lib/importlib/_bootstrap.py: _ModuleLock.acquire() waits on self.wakeup while self.owner imports the
  // module.
  bool import_in_progress() {
    for (std::size_t i = 0; i < std::min<std::size_t>(waiter_.frames.size(), 2); ++i) {
      const PythonFrame& frame = waiter_.frames[i];
      if (frame.file != "<frozen importlib._bootstrap>" || last_part(frame.function) != "acquire") continue;
      auto self = own_.local_object(waiter_, i, "self");
      if (!self || objects_.type_name_of(*self) != "_ModuleLock") continue;
      facts_.object = *self;
      facts_.type_name = "_ModuleLock";
      if (auto name = objects_.attribute(*self, "name")) facts_.module = objects_.text(*name).value_or("");
      if (auto owner = ident_attribute(*self, "owner")) {
        name_owner(static_cast<std::uint64_t>(*owner), LockOwnerFrom::module_lock);
      } else {
        facts_.problem = "nobody holds it now";
      }
      return true;
    }
    return false;
  }

  // Lib/threading.py: Thread.join(), up to 3.12 through Thread._wait_for_tstate_lock().
  bool join() {
    if (waiter_.frames.empty()) return false;
    const PythonFrame& frame = waiter_.frames.front();
    if (!frame.file.ends_with("threading.py")) return false;
    if (last_part(frame.function) != "join" && last_part(frame.function) != "_wait_for_tstate_lock") {
      return false;
    }
    auto self = own_.local_object(waiter_, 0, "self");
    auto ident = self ? ident_attribute(*self, "_ident") : std::nullopt;
    if (!ident) return false;
    const auto wanted = static_cast<std::uint64_t>(*ident);
    auto alive = std::find_if(state_.threads.begin(), state_.threads.end(),
                              [&](const PythonThread& thread) { return thread.ident == wanted; });
    if (alive == state_.threads.end()) return false;
    facts_.object = *self;
    facts_.type_name = objects_.type_name_of(*self);
    name_owner(wanted, LockOwnerFrom::joined_thread);
    return true;
  }

  // The lock as a value of the frame, in a cell, or as `self` of a bound method.
  std::optional<Found> among_values(Address futex) {
    std::vector<Address> values;
    for (std::size_t i = 0; i < std::min(waiter_.frames.size(), kSearchedFrames); ++i) {
      for (Address slot : waiter_.frames[i].slots) {
        if (plausible(slot) && values.size() < kMaxSearchedSlots) values.push_back(slot);
      }
    }
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    const auto direct = words(values);
    std::vector<Address> inner;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!direct[i]) continue;
      if ((*direct[i])[0] == futex && is_lock(values[i])) return Found{values[i]};
      inner.push_back((*direct[i])[0]);  // content of a cell
      inner.push_back((*direct[i])[1]);  // self of a method, after the function or PyMethodDef
    }
    std::erase_if(inner, [](Address address) { return !plausible(address); });
    const auto indirect = words(inner);
    for (std::size_t i = 0; i < inner.size(); ++i) {
      if (indirect[i] && (*indirect[i])[0] == futex && is_lock(inner[i])) return Found{inner[i]};
    }
    return std::nullopt;
  }

  // Python/parking_lot.c: the futex is `sema` in a wait_entry {void *park_arg; uintptr_t addr; _PySemaphore
  // sema} on the waiter's own stack, and addr is the PyMutex: the first word of a lock after its header.
  std::optional<Address> parked_at(Address futex) const {
    if (own_.layout().minor < 13 || !plausible(futex)) return std::nullopt;
    auto mutex = own_.reader.read_value<Address>(futex - 8);
    return mutex && *mutex > kLowest ? mutex : std::nullopt;
  }

  std::optional<Found> parked_on(Address futex) {
    const auto mutex = parked_at(futex);
    if (!mutex || !plausible(*mutex)) return std::nullopt;
    const Address object = *mutex - static_cast<Address>(own_.layout().object_size);
    if (!is_lock(object)) return std::nullopt;
    return Found{object, true};
  }

  // A PyMutex of C code (Include/cpython/pylock.h): one byte anywhere, of which both bits are set while
  // somebody has it and others are parked (_Py_LOCKED, _Py_HAS_PARKED); of an event only the second one is.
  // 0 if it is none.
  Address bare_mutex(Address futex) const {
    const auto mutex = parked_at(futex);
    const auto bits = mutex ? own_.reader.read_value<std::uint8_t>(*mutex) : std::nullopt;
    return bits == std::uint8_t{3} ? *mutex : 0;
  }

  // Lib/multiprocessing/synchronize.py: SemLock.__enter__() of a Lock. Else it may be anybody's semaphore.
  bool entered_a_lock() {
    if (waiter_.frames.empty()) return false;
    const PythonFrame& frame = waiter_.frames.front();
    if (!frame.file.ends_with("multiprocessing/synchronize.py") || last_part(frame.function) != "__enter__") {
      return false;
    }
    auto self = own_.local_object(waiter_, 0, "self");
    return self && objects_.type_name_of(*self) == "Lock";
  }

  void shared_owner(Address object) {
    facts_.shared = read_shared(own_.reader, own_.layout(), object);
    if (!facts_.shared) {
      facts_.problem = "the semaphore is not readable";
      return;
    }
    facts_.shared_lock = entered_a_lock();
    if (!facts_.shared->recursive && facts_.shared->most != 1) {
      facts_.problem = "it counts, so nobody holds it";
    } else if (facts_.shared->count > 0 && facts_.shared->recursive) {
      name_owner(facts_.shared->last_ident, LockOwnerFrom::shared_rlock);
    } else if (facts_.shared->count > 0 && facts_.shared_lock) {
      name_owner(facts_.shared->last_ident, LockOwnerFrom::shared_lock);
    }
  }

  void rlock_owner(const Found& lock) {
    auto owner = word(lock.object, 1);
    auto count = word(lock.object, 2);
    if (!owner || !count) {
      facts_.problem = "the RLock is not readable";
      return;
    }
    // `level` counts from 0, rlock_count from 1.
    facts_.count = lock.parked ? (*owner != 0 ? *count + 1 : 0) : *count;
    if (*owner == 0 || facts_.count == 0) {
      facts_.count = 0;
      facts_.problem = "nobody holds it now";
      return;
    }
    name_owner(*owner, LockOwnerFrom::rlock_owner);
    // Of a list that was not read to its end the owner may be among the rest.
    if (facts_.owner_tid == 0) {
      facts_.problem = state_.problem.empty() ? "no thread has the ident of its owner"
                                              : "not all threads were read, nor was its owner";
    }
  }

  bool is_locked(const Found& lock) const {
    auto state = word(lock.object, lock.parked ? 0 : 2);  // PyMutex: bit 0; else `locked`
    return state && (*state & 1) != 0;
  }

  // Condition.wait() gives its lock up while it sleeps, also that of a `with` block further out.
  bool gave_it_up(const PythonThread& thread, std::size_t outer, Address lock) {
    for (std::size_t i = 0; i < outer; ++i) {
      const PythonFrame& frame = thread.frames[i];
      if (!frame.file.ends_with("threading.py") || last_part(frame.function) != "wait") continue;
      auto self = own_.local_object(thread, i, "self");
      if (!self || objects_.attribute(*self, "_lock") == lock) return true;
    }
    return false;
  }

  bool is_condition_of(Address object, Address lock) {
    if (objects_.type_name_of(object) != "Condition") return false;
    return objects_.attribute(object, "_lock") == lock;
  }

  bool is_exit(Address function) const { return function_name(objects_, function) == "__exit__"; }

  // Is `value`, on a value stack followed by `next`, the __exit__ that a `with` block of the lock keeps
  // there?
  bool is_exit_of(Address value, Address next, Address lock) {
    const std::string type = objects_.type_name_of(value);
    if (type == "builtin_function_or_method") {  // PyCFunctionObject {head, PyMethodDef *m_ml, m_self}
      auto definition = word(value, 0);
      if (!definition || word(value, 1) != lock) return false;
      auto name = own_.reader.read_value<Address>(*definition);
      return name && own_.reader.read_cstring(*name, 16) == "__exit__";
    }
    // PyDescrObject {head, d_type, d_name, ...}: since 3.14 LOAD_SPECIAL keeps it and its self apart.
    if (type == "method_descriptor" && own_.layout().minor >= 14) {
      return next == lock && objects_.text(word(value, 1).value_or(0)) == "__exit__";
    }
    const BoundMethod method = method_on_stack(objects_, value, next);
    return is_condition_of(method.self, lock) && is_exit(method.function);
  }

  // The `with` of an object whose __exit__ takes a lock again, or that runs a generator which nothing is
  // known of, lies on the value stack from `first` on: it may have given the lock back for as long as its
  // body lasts.
  bool has_unlocker(const PythonFrame& frame, std::size_t first, std::size_t end) {
    static constexpr std::string_view kTakes[] = {"acquire", "acquire_lock", "__enter__"};
    for (std::size_t i = first; i < end; ++i) {
      const auto [function, self] =
          method_on_stack(objects_, frame.slots[i], i + 1 < end ? frame.slots[i + 1] : 0);
      if (!is_exit(function)) continue;
      if (objects_.type_name_of(self) == "_GeneratorContextManager") return true;
      if (own_.may_call(own_.code_of_function(function), kTakes)) return true;
    }
    return false;
  }

  std::vector<std::optional<Address>> globals_named(Address globals, const std::vector<std::string>& names) {
    const std::vector<std::string_view> keys(
        names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMaxNames)));
    return objects_.find(globals, keys);
  }

  // Whether a function gives a lock back that it has not taken, and that may be this one: it names it, or no
  // other one.
  bool may_release(Address function, Address lock) {
    static constexpr std::string_view kGives[] = {"release", "release_lock"};
    static constexpr std::string_view kTakes[] = {"acquire", "acquire_lock"};
    static constexpr std::string_view kOthers[] = {"lock", "RLock", "Semaphore", "BoundedSemaphore"};
    const auto names = own_.names_in(own_.code_of_function(function));
    // PyFunctionObject: func_globals comes first, before 3.10 after func_code.
    const auto globals = word(function, own_.layout().minor >= 10 ? 0 : 1);
    if (!names || !globals || objects_.type_name_of(*globals) != "dict") return false;
    const auto has = [&names](std::string_view name) {
      return std::ranges::find(*names, name) != names->end();
    };
    if (std::ranges::none_of(kGives, has) || std::ranges::any_of(kTakes, has)) return false;
    bool another = false;
    for (const auto& value : globals_named(*globals, *names)) {
      if (!value) continue;
      if (*value == lock || is_condition_of(*value, lock)) return true;
      const std::string type = objects_.type_name_of(*value);
      another = another || std::ranges::find(kOthers, type.substr(type.rfind('.') + 1)) != std::end(kOthers);
    }
    return !another;
  }

  // Whether a function that a frame calls by its name may have released the lock and returned.
  bool calls_releaser(const PythonFrame& frame, Address lock) {
    const auto names = own_.names_in(frame.code);
    const auto globals = own_.reader.read_value<Address>(frame.frame + globals_offset());
    if (!names || !globals || objects_.type_name_of(*globals) != "dict") return false;
    return std::ranges::any_of(globals_named(*globals, *names), [&](const std::optional<Address>& value) {
      return value && objects_.type_name_of(*value) == "function" && may_release(*value, lock);
    });
  }

  // f_globals of _PyInterpreterFrame (Include/internal/pycore_frame.h) and PyFrameObject
  // (Include/frameobject.h).
  Address globals_offset() const {
    const int minor = own_.layout().minor;
    if (minor >= 12) return 24;
    return minor == 11 ? 8 : 48;
  }

  // Whether code that runs inside of the `with` block may have given its lock back before the block's end.
  bool may_have_released(const PythonThread& thread, const PythonFrame& held_in, Address lock) {
    static constexpr std::string_view kGives[] = {"release", "release_lock", "__exit__"};
    for (const PythonFrame& frame : thread.frames) {
      const bool outermost = &frame == &held_in;
      if (!own_.is_standard_library(frame.file) &&
          (own_.may_call(frame.code, kGives) || calls_releaser(frame, lock))) {
        return true;
      }
      const std::size_t end = frame.first_stack_slot + frame.live_stack;
      if (frame.slots.size() < end) return true;  // not read: it may stand in such a `with`
      std::size_t first = frame.first_stack_slot;
      if (outermost) {
        while (first < end &&
               !is_exit_of(frame.slots[first], first + 1 < end ? frame.slots[first + 1] : 0, lock))
          ++first;
        ++first;
      }
      if (has_unlocker(frame, first, end)) return true;
      if (outermost) return false;
    }
    return true;
  }

  const PythonFrame* holding_frame(const PythonThread& thread, Address lock) {
    for (std::size_t i = 0; i < thread.frames.size(); ++i) {
      const PythonFrame& frame = thread.frames[i];
      const std::size_t end = std::min(frame.slots.size(), frame.first_stack_slot + frame.live_stack);
      for (std::size_t k = frame.first_stack_slot; k < end; ++k) {
        const Address next = k + 1 < end ? frame.slots[k + 1] : 0;
        if (is_exit_of(frame.slots[k], next, lock) && !gave_it_up(thread, i, lock)) return &frame;
      }
    }
    return nullptr;
  }

  void with_owner(const Found& lock, std::span<const int> not_asleep) {
    if (!is_locked(lock)) {
      facts_.problem = "nobody holds it now";
      return;
    }
    facts_.problem = "CPython records no owner of a Lock, and no thread stands in a `with` of it";
    std::size_t holders = 0;
    bool doubtful = false;
    bool unseen = false;
    const PythonThread* runs = nullptr;  // the one that does and stands in a `with` of it
    std::size_t running_holders = 0;
    for (const PythonThread& thread : state_.threads) {
      const bool running =
          std::find(not_asleep.begin(), not_asleep.end(), thread.native_tid) != not_asleep.end();
      // In the frames that are missing it may have taken the lock, or given it back.
      if (!thread.problem.empty() || thread.left_out > 0) {
        unseen = true;
        continue;
      }
      const PythonFrame* frame = holding_frame(thread, lock.object);
      unseen = unseen || (running && frame == nullptr);
      if (frame == nullptr) continue;
      if (may_have_released(thread, *frame, lock.object)) {
        doubtful = true;
        continue;
      }
      if (running) {
        unseen = true;
        ++running_holders;
        runs = &thread;
        continue;
      }
      ++holders;
      name_holder(thread, *frame, LockOwnerFrom::with_block);
    }
    if (running_holders == 1 && holders == 0 && !doubtful) {
      name_holder(*runs, *holding_frame(*runs, lock.object), LockOwnerFrom::running_block);
    } else if (doubtful && holders == 0) {
      facts_.problem = "the code of the thread in a `with` of it may have released it there";
    } else if (unseen && holders == 0) {
      facts_.problem = "CPython records no owner of a Lock, and not all frames of all threads were seen";
    }
    if (holders > 1) {
      LockFacts withheld;
      withheld.object = facts_.object;
      withheld.type_name = facts_.type_name;
      withheld.problem = std::to_string(holders) + " threads stand in a `with` of it";
      facts_ = std::move(withheld);
    }
  }

  PythonProcess::State& own_;
  Objects& objects_;
  const PythonState& state_;
  const PythonThread& waiter_;
  LockFacts facts_;
};

}  // namespace

LockFacts PythonProcess::describe_lock(const PythonState& state, const PythonThread& waiter, Address futex,
                                       std::span<const int> not_asleep) {
  if (!state_->runtime.layout) {
    LockFacts none;
    none.problem = state_->runtime.problem;
    return none;
  }
  return LockSearch(*state_, state, waiter).describe(futex, not_asleep);
}

std::vector<SharedSemaphore> PythonProcess::entered_semaphores(const PythonState& state) {
  std::vector<SharedSemaphore> found;
  if (!state_->runtime.layout) return found;
  Objects& objects = state_->objects;
  for (const PythonThread& thread : state.threads) {
    for (const PythonFrame& frame : thread.frames) {
      const std::size_t end = std::min(frame.slots.size(), frame.first_stack_slot + frame.live_stack);
      for (std::size_t i = frame.first_stack_slot; i < end && found.size() < kMaxEntered; ++i) {
        const Address self =
            method_on_stack(objects, frame.slots[i], i + 1 < end ? frame.slots[i + 1] : 0).self;
        const std::string holder = objects.type_name_of(self);
        if (holder != "Lock" && holder != "RLock") continue;
        const auto semaphore = shared_semaphore(objects.attribute(self, "_semlock").value_or(0));
        if (semaphore && semaphore->count > 0) found.push_back(*semaphore);
      }
    }
  }
  return found;
}

std::optional<SharedSemaphore> PythonProcess::shared_semaphore(Address object) {
  if (!state_->runtime.layout || !plausible(object)) return std::nullopt;
  if (state_->objects.type_name_of(object) != kSemLock) return std::nullopt;
  return read_shared(state_->reader, state_->layout(), object);
}

}  // namespace hangtrace::python
