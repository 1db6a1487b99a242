#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "python/async_tasks.hpp"
#include "python/coroutines.hpp"
#include "python/process_state.hpp"

// Reads off the coroutines of a task in a method of which object it is suspended (Lib/asyncio/locks.py,
// queues.py).
namespace hangtrace::python {

class TaskObjectReader {
 public:
  explicit TaskObjectReader(PythonProcess::State& own) : own_(own), objects_(own.objects) {}

  // Of a task that is suspended in these coroutines, whose code is in own.codes.
  TaskObject read(const AwaitChain& chain);

 private:
  struct Method {
    std::string_view file;
    std::string_view name;
    Address self = 0;
  };

  std::optional<Method> method_of(const SuspendedFrame& frame);
  void describe(const Method& method, TaskObject& found);
  bool has(Address object, std::string_view name);
  std::optional<std::int64_t> number(Address object, std::string_view name);
  std::optional<std::int64_t> length(Address object, std::string_view name);

  PythonProcess::State& own_;
  Objects& objects_;
};

}  // namespace hangtrace::python
