#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "elf/module.hpp"

namespace hangtrace::dwarf {

using memory::Address;

struct SourceFrame {
  std::string function;  // demangled; empty: unknown
  std::string file;      // empty: unknown
  int line = 0;          // 0: unknown
};

/// What lies at an address: the functions inlined there, innermost first, and last the function itself.
/// Empty: nothing is known.
using SourceFrames = std::vector<SourceFrame>;

struct SourceLines {
  std::vector<SourceFrames> frames;  // for each address
  std::string problem;  // why some are missing, if there is more to say than that nothing is there
};

using Deadline = std::chrono::steady_clock::time_point;

/// The debug information (DWARF 2 to 5) of one module, from its own file or its separate debug file. Only
/// units that hold code which was asked for are read.
class DebugInfo {
 public:
  explicit DebugInfo(const elf::Module& module);
  ~DebugInfo();
  DebugInfo(const DebugInfo&) = delete;
  DebugInfo& operator=(const DebugInfo&) = delete;

  /// By va. What was not found when the deadline came is empty, and `problem` says so.
  SourceLines find(std::span<const Address> addresses, Deadline deadline);

 private:
  class Reader;
  std::unique_ptr<Reader> reader_;  // null: no debug information
};

}  // namespace hangtrace::dwarf
