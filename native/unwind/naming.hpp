#pragma once

#include <span>
#include <string>
#include <vector>

#include "elf/process_modules.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::unwind {

struct FrameName {
  std::string function;       // demangled; empty: unknown
  Address offset = 0;         // of the frame's va from the function's start (0 when named by call site)
  bool by_call_site = false;  // the symbol is that of the function its caller called, through PLT or GOT
  bool jit = false;           // code made at run time, named by the program's perf map
};

struct NamingJob {  // all stacks of one process
  elf::ProcessModules* modules;
  std::span<const Stack> stacks;
};

/// Names of all frames of all processes in one pass per module: result[job][stack][frame]. Sources of a name,
/// the first that has one: the module's own symbol tables, the call in the frame outside, the module's
/// separate debug file; for code without file the perf map. So what a stack says of a known function does not
/// depend on debug files being there.
std::vector<std::vector<std::vector<FrameName>>> name_stacks(std::span<const NamingJob> jobs);

}  // namespace hangtrace::unwind
