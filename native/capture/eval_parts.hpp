#pragma once

#include <mutex>
#include <unordered_map>
#include <vector>

#include "elf/module.hpp"
#include "unwind/table_cache.hpp"

namespace hangtrace::capture {

using memory::Address;

/// Code of CPython's evaluation loop that no symbol names. Compilers move the parts of a function that they
/// think are rarely run far away from it; in a stripped file the name of such a part is lost. It has an entry
/// of its own in the unwind table, and the function jumps into the middle of it on conditions: only parts of
/// one function do that, as another one can only be gone to at its begin. From several threads.
class EvalParts {
 public:
  explicit EvalParts(unwind::TableCache& tables) : tables_(tables) {}

  /// Whether `va` lies in such a part of the loop which the module exports.
  bool contains(elf::Module& module, Address va);

 private:
  const std::vector<unwind::FunctionRange>& parts_of(elf::Module& module);

  unwind::TableCache& tables_;
  std::mutex mutex_;
  std::unordered_map<const elf::Module*, std::vector<unwind::FunctionRange>> parts_;
};

}  // namespace hangtrace::capture
