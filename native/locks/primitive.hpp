#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "memory/reader.hpp"

namespace hangtrace::locks {

using memory::Address;

/// A frame of a waiting thread, innermost first in a list of them.
struct FrameHint {
  std::string_view function;  // demangled; empty if unknown
  std::string_view module;    // path
  Address stack_begin = 0;    // its part of the stack: [begin, end); both 0 if unknown
  Address stack_end = 0;
  Address pc = 0;  // of callers the return address; 0 if unknown
};

/// What a thread called to go to sleep, as the names of its innermost frames say.
enum class Primitive {
  unknown,
  low_level_lock,  // a lock inside the C library (malloc, stdio)
  mutex,
  condition,
  rwlock_read,
  rwlock_write,
  join,
  semaphore,
  barrier,
  once,
  future,
  atomic,
  openmp,
  gil,
  python_lock,
};

struct Recognized {
  Primitive primitive = Primitive::unknown;
  std::size_t frame = 0;  // index of the frame that says so
};

/// Looks at the innermost frames only: what a thread waits in is called by it directly or through a few
/// wrappers.
Recognized recognize(std::span<const FrameHint> frames);

}  // namespace hangtrace::locks
