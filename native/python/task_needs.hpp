#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "python/coroutines.hpp"
#include "python/process_state.hpp"

// What a suspended task of asyncio needs to go on, and which of asyncio's locks it has. Neither is recorded:
// both are read off the coroutines that it is suspended in (Lib/asyncio/tasks.py, taskgroups.py, locks.py,
// futures.py).
namespace hangtrace::python {

struct TaskNeeds {
  // Tasks, and futures of concurrent.futures that threads work on, all of which have to be done first.
  std::vector<Address> needs;
  bool known = false;  // there is nothing else that would let it go on, but for a timer or an exception
  Address lock = 0;    // the asyncio.Lock that it waits for
  std::vector<Address> holds;  // locks and semaphores in whose `async with` it is suspended
};

// What the reader of tasks knows of futures.
struct FutureView {
  std::function<bool(Address)> is_task;
  std::function<bool(Address)> is_pending;
  // The function that was the first to ask for a future's end; 0: none, or no Python function.
  std::function<Address(Address)> callback;
};

class TaskNeedsReader {
 public:
  TaskNeedsReader(PythonProcess::State& own, FutureView futures)
      : own_(own), objects_(own.objects), futures_(std::move(futures)) {}

  // Of a task that waits for the future `waiter` in these coroutines, whose code is in own.codes.
  TaskNeeds read(Address waiter, const AwaitChain& chain);

  // The future of concurrent.futures that is done when this one is: that of a thread which waits for a task,
  // or of a task which waits for a thread (futures._chain_future); 0: none.
  Address chained(Address future);

  // The same of a callback by which another thread asks a loop to run a coroutine.
  Address handed_over(Address callback);

 private:
  struct Frame {
    const SuspendedFrame* frame = nullptr;
    const Code* code = nullptr;
    bool of_asyncio(std::string_view file, std::string_view function) const;
  };

  std::optional<Address> local(const Frame& frame, std::string_view name) const;
  void need(Address future, TaskNeeds& found, int depth);
  void need_all(const std::vector<Address>& futures, TaskNeeds& found, int depth);
  void find_needs(Address waiter, const std::vector<Frame>& frames, TaskNeeds& found);
  std::vector<Address> entered(const Frame& frame) const;
  Address lock_of(Address object) const;
  bool is_locked(Address lock) const;
  bool is_semaphore(Address object) const;
  bool gave_up(const std::vector<Frame>& frames, std::size_t from, Address lock) const;
  void find_holds(const std::vector<Frame>& frames, TaskNeeds& found) const;
  std::vector<Address> closure(Address function) const;
  Address threads_future(Address function) const;
  bool is_named(Address function, std::string_view name) const;

  PythonProcess::State& own_;
  Objects& objects_;
  FutureView futures_;
  std::size_t members_left_ = std::size_t{1} << 14;  // of all gathers and groups
};

}  // namespace hangtrace::python
