#pragma once

#include <span>
#include <string>
#include <vector>

#include "elf/process_modules.hpp"

namespace hangtrace::nccl {

/// The files mapped in a process that have NCCL in them: libnccl and librccl, or else those into which it was
/// linked. `told`: paths of files that threads were met in, in functions of NCCL.
std::vector<elf::Location> libraries(elf::ProcessModules& modules, std::span<const std::string> told);

}  // namespace hangtrace::nccl
