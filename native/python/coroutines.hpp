#pragma once

#include <string>
#include <vector>

#include "python/async_layout.hpp"
#include "python/objects.hpp"

// Chains of suspended coroutines: what cr_await, gi_yieldfrom and ag_await would tell inside the program.
namespace hangtrace::python {

struct SuspendedFrame {
  Address frame = 0;
  Address code = 0;
  std::uint64_t instruction = 0;  // as Layout::frame_instruction describes it
  Address start = 0;              // of the instructions that it runs
  Address stack_end = 0;          // of its value stack; 0: it does not await
};

enum class ChainEnd {
  awaits,       // `last` is awaited and no coroutine: a future, a task, an iterator of C code
  yields,       // the innermost generator yielded by itself, it awaits nothing
  running,      // a coroutine of the chain runs: `last` is its frame, to be found on some thread's stack
  not_started,  // created, never run
  finished,
  unreadable,  // see problem
};

struct AwaitChain {
  std::vector<SuspendedFrame> frames;  // outermost first
  ChainEnd end = ChainEnd::unreadable;
  Address last = 0;
  std::string problem;
};

// One chain for each of `coroutines`, all followed in step so that memory is read in few calls. Nothing
// guards against a program that goes on meanwhile but the state that each frame must be in.
std::vector<AwaitChain> follow_awaits(Objects& objects, const AsyncLayout& layout,
                                      const std::vector<Address>& coroutines);

// The value stack of a suspended frame whose code has so many named slots, from its bottom; {} if it is not
// readable or too large.
std::vector<Address> stack_values(const Objects& objects, const SuspendedFrame& frame,
                                  std::size_t named_slots);

}  // namespace hangtrace::python
