#include "python/task_needs.hpp"

#include <algorithm>
#include <array>

#include "python/callables.hpp"
#include "python/names.hpp"

namespace hangtrace::python {
namespace {

constexpr std::size_t kMaxHeld = 16;  // locks of one task
constexpr int kMaxDepth = 4;          // of gathers in gathers

}  // namespace

bool TaskNeedsReader::Frame::of_asyncio(std::string_view file, std::string_view function) const {
  const std::string_view path = code->file;
  return is_of_asyncio(path) && path.substr(path.rfind('/') + 1) == file &&
         last_part(code->function) == function;
}

std::optional<Address> TaskNeedsReader::local(const Frame& frame, std::string_view name) const {
  return own_.local_of(frame.frame->frame, frame.frame->code, name);
}

TaskNeeds TaskNeedsReader::read(Address waiter, const AwaitChain& chain) {
  TaskNeeds found;
  std::vector<Frame> frames;  // outermost first
  for (const SuspendedFrame& frame : chain.frames) {
    frames.push_back({&frame, own_.codes.find(frame.code)});
    if (frames.back().code == nullptr) return found;
  }
  find_needs(waiter, frames, found);
  find_holds(frames, found);
  return found;
}

void TaskNeedsReader::find_needs(Address waiter, const std::vector<Frame>& frames, TaskNeeds& found) {
  found.known = true;
  auto inner = std::find_if(frames.rbegin(), frames.rend(), [](const Frame& frame) {
    return last_part(frame.code->function) != "__await__";  // of a Future written in Python
  });
  if (inner == frames.rend()) {
    found.known = false;
  } else if (inner->of_asyncio("locks.py", "acquire")) {
    const auto self = local(*inner, "self");
    if (self && lock_of(*self) == *self && is_locked(*self)) found.lock = *self;
    found.known = found.lock != 0;
  } else if (inner->of_asyncio("tasks.py", "_wait")) {
    const auto how = local(*inner, "return_when");
    const auto all = local(*inner, "fs");
    if (how && all && objects_.text(*how) == "ALL_COMPLETED") {
      need_all(objects_.set(*all), found, 0);
    } else {
      found.known = false;
    }
  } else if (inner->of_asyncio("taskgroups.py", "__aexit__") ||
             inner->of_asyncio("taskgroups.py", "_aexit")) {
    const auto self = local(*inner, "self");
    const auto tasks = self ? objects_.attribute(*self, "_tasks") : std::nullopt;
    need_all(tasks ? objects_.set(*tasks) : std::vector<Address>(), found, 0);
  } else if (inner->of_asyncio("tasks.py", "wait_for") && futures_.callback(waiter) == 0 &&
             !futures_.is_task(waiter)) {
    need(local(*inner, "fut").value_or(0), found, 0);  // up to 3.11 it waits for a future of its own
  } else {
    need(waiter, found, 0);
  }
}

void TaskNeedsReader::need(Address future, TaskNeeds& found, int depth) {
  if (futures_.is_task(future)) {
    found.needs.push_back(future);
    return;
  }
  if (last_part(objects_.type_name_of(future)) == "_GatheringFuture" && depth < kMaxDepth) {
    const auto children = objects_.attribute(future, "_children");
    need_all(children ? objects_.list(*children) : std::vector<Address>(), found, depth + 1);
    return;
  }
  const Address callback = futures_.callback(future);
  if (is_named(callback, "_outer_done_callback") && depth < kMaxDepth) {  // of shield()
    for (Address inner : closure(callback)) {
      if (inner != future && (futures_.is_task(inner) || chained(inner) != 0)) {
        need(inner, found, depth + 1);
        return;
      }
    }
  }
  const Address call = chained(future);
  if (call != 0) {
    found.needs.push_back(call);
  } else {
    found.known = false;
  }
}

void TaskNeedsReader::need_all(const std::vector<Address>& futures, TaskNeeds& found, int depth) {
  if (futures.empty() || futures.size() > members_left_) {
    found.known = false;
    return;
  }
  members_left_ -= futures.size();
  for (Address future : futures) {
    if (futures_.is_pending(future)) need(future, found, depth);
  }
}

Address TaskNeedsReader::chained(Address future) {
  const Address callback = futures_.callback(future);
  const bool chains = is_named(callback, "_call_check_cancel") || is_named(callback, "_call_set_state");
  return chains ? threads_future(callback) : 0;
}

Address TaskNeedsReader::handed_over(Address callback) {
  return is_named(callback, "callback") ? threads_future(callback) : 0;
}

// The future of concurrent.futures among the free variables of a function; asyncio's have no _condition.
Address TaskNeedsReader::threads_future(Address function) const {
  for (Address value : closure(function)) {
    if (objects_.attribute(value, "_condition")) return value;
  }
  return 0;
}

bool TaskNeedsReader::is_named(Address function, std::string_view name) const {
  return objects_.type_name_of(function) == "function" && function_name(objects_, function) == name;
}

// What the free variables of a function refer to: func_closure, a tuple of cells {head, ob_ref}. Up to 3.9 it
// stands before func_doc and func_name, since 3.10 after func_name, func_qualname, func_code, func_defaults
// and func_kwdefaults (Include/cpython/funcobject.h).
std::vector<Address> TaskNeedsReader::closure(Address function) const {
  const Layout& layout = own_.layout();
  const int offset = layout.minor >= 10 ? layout.function_name + 40 : layout.function_name - 16;
  std::vector<Address> values;
  for (Address cell :
       objects_.tuple(own_.reader.read_value<Address>(function + static_cast<Address>(offset)).value_or(0))) {
    if (const auto value = objects_.word(cell, 0); value && plausible(*value)) values.push_back(*value);
  }
  return values;
}

// asyncio.Lock itself, or that of an asyncio.Condition; 0: another object.
Address TaskNeedsReader::lock_of(Address object) const {
  const std::string type = objects_.type_name_of(object);
  const Address lock = type == "Condition" ? objects_.attribute(object, "_lock").value_or(0) : object;
  if (objects_.type_name_of(lock) != "Lock") return 0;
  return objects_.attribute(lock, "_locked") && objects_.attribute(lock, "_waiters") ? lock : 0;
}

bool TaskNeedsReader::is_locked(Address lock) const {
  const auto locked = objects_.attribute(lock, "_locked");
  const SimpleValue value = locked ? objects_.value(*locked) : SimpleValue();
  const auto* found = std::get_if<bool>(&value);
  return found != nullptr && *found;
}

// asyncio's own, by what no other object of asyncio with a name like this has.
bool TaskNeedsReader::is_semaphore(Address object) const {
  const std::string type = objects_.type_name_of(object);
  return (type == "Semaphore" || type == "BoundedSemaphore") && objects_.attribute(object, "_value") &&
         objects_.attribute(object, "_waiters");
}

// Locks and semaphores of the `async with` blocks that a coroutine stands in: each keeps the bound __aexit__
// on the value stack.
std::vector<Address> TaskNeedsReader::entered(const Frame& frame) const {
  const std::vector<Address> values = stack_values(objects_, *frame.frame, frame.code->named_slots);
  std::vector<Address> locks;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const BoundMethod method =
        method_on_stack(objects_, values[i], i + 1 < values.size() ? values[i + 1] : 0);
    if (!is_named(method.function, "__aexit__")) continue;
    const Address lock = is_semaphore(method.self) ? method.self : lock_of(method.self);
    if (lock != 0) locks.push_back(lock);
  }
  return locks;
}

// Whether what runs inside of the `async with` may have given the lock back: Condition.wait() does for as
// long as it waits, and so may code that calls a release itself.
bool TaskNeedsReader::gave_up(const std::vector<Frame>& frames, std::size_t from, Address lock) const {
  static constexpr std::array<std::string_view, 2> kGives = {"release", "__aexit__"};
  for (std::size_t i = from; i < frames.size(); ++i) {
    if (i > from && frames[i].of_asyncio("locks.py", "wait")) {
      const auto self = local(frames[i], "self");
      if (!self || objects_.attribute(*self, "_lock") == lock) return true;
    }
    if (!own_.is_standard_library(frames[i].code->file) && own_.may_call(frames[i].frame->code, kGives)) {
      return true;
    }
  }
  return false;
}

void TaskNeedsReader::find_holds(const std::vector<Frame>& frames, TaskNeeds& found) const {
  for (std::size_t i = 0; i < frames.size(); ++i) {
    std::vector<Address> locks = entered(frames[i]);
    // The last one is not its own yet while it asks for it.
    if (!locks.empty() && i + 1 < frames.size() && frames[i + 1].of_asyncio("locks.py", "__aenter__")) {
      locks.pop_back();
    }
    for (Address lock : locks) {
      const bool had = is_semaphore(lock) || is_locked(lock);
      if (found.holds.size() < kMaxHeld && had && !gave_up(frames, i, lock)) {
        found.holds.push_back(lock);
      }
    }
  }
}

}  // namespace hangtrace::python
