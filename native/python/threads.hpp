#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "python/code_cache.hpp"
#include "python/objects.hpp"

// The interpreter's own structures: interpreters, thread states and frames.
namespace hangtrace::python {

struct Interpreter {
  Address address = 0;
  std::int64_t id = 0;
  Address first_thread = 0;
  Address modules = 0;  // sys.modules
  Address sysdict = 0;  // vars(sys)
  Address gil = 0;      // 0: unknown
};

struct ThreadState {
  Address address = 0;
  std::uint64_t ident = 0;
  std::uint64_t native_id = 0;  // as the program was told; 0 before 3.11
  Address frame = 0;            // innermost
  Address chunk = 0;
  Address chunk_top = 0;   // so far the newest chunk is in use
  Address stack_mark = 0;  // 3.10 to 3.12: on the thread's C stack, or in the thread state; else 0
};

struct Frame {
  Address address = 0;
  Address code = 0;
  std::uint64_t instruction = 0;
  std::int32_t copy = 0;  // free-threaded since 3.14: which copy of the code is run, 0 the one in the object
  int line = 0;
  bool entry = false;
  bool generator = false;
  std::vector<Address> slots;
  std::size_t first_stack_slot = 0;
  std::size_t live_stack = 0;
};

struct FrameChain {
  std::vector<Frame> frames;  // innermost first
  // Where on the C stack the innermost of them was entered, roughly: a chain of the same thread with a lower
  // address is further in. 0: not known.
  Address on_c_stack = 0;
  std::size_t left_out = 0;  // frames between the innermost and the outermost ones, of a very deep recursion
  std::string problem;       // "": whole, but for those
};

// `problem` gets the reason if a list had to be cut.
std::vector<Interpreter> read_interpreters(const memory::Reader& reader, const Layout& layout,
                                           Address runtime, std::string& problem);
std::vector<ThreadState> read_threads(const memory::Reader& reader, const Layout& layout,
                                      const Interpreter& interpreter, std::string& problem);

// One chain for each thread. A chain that makes no sense is read once more from its thread state on.
std::vector<FrameChain> read_frames(Objects& objects, CodeCache& codes,
                                    const std::vector<ThreadState>& threads);

}  // namespace hangtrace::python
