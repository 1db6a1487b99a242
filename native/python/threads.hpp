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
};

struct Frame {
  Address address = 0;
  Address code = 0;
  std::uint64_t instruction = 0;
  int line = 0;
  bool entry = false;
  bool generator = false;
  std::vector<Address> slots;
  std::size_t first_stack_slot = 0;
  std::size_t live_stack = 0;
};

struct FrameChain {
  std::vector<Frame> frames;  // innermost first
  std::string problem;        // "": whole
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
