#pragma once

#include <span>
#include <string>
#include <vector>

#include "elf/process_modules.hpp"
#include "unwind/table_cache.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::unwind {

/// Of stacks of threads that nap: names of the functions that the loops around the nap call. Loops are looked
/// for in the innermost functions. One list for each stack.
std::vector<std::vector<std::string>> called_around_naps(std::span<const Stack* const> stacks,
                                                         elf::ProcessModules& modules, TableCache& tables);

}  // namespace hangtrace::unwind
