#pragma once

#include <cstdint>

#include "elf/module.hpp"

namespace hangtrace::unwind {

using memory::Address;

/// What the begin of an x86-64 function does to the stack after it has set its frame pointer.
struct Prologue {
  bool sets_frame_pointer = false;  // push rbp; mov rbp, rsp
  std::uint64_t below = 0;          // bytes from the frame pointer down to the stack pointer, at least
  std::uint64_t alignment = 0;      // the stack pointer was aligned to this after `mov rbp, rsp`; 0 no
  bool exact = false;               // the whole fixed part was understood
  bool dynamic = false;             // the function seems to move the stack pointer by a variable amount
};

/// Decodes the code of [begin, pc); stops at the first instruction it does not know.
Prologue read_prologue(const elf::Module& module, Address begin, Address pc);

}  // namespace hangtrace::unwind
