#pragma once

#include <memory>
#include <span>
#include <string>

#include "elf/module.hpp"

namespace hangtrace::elf {

/// The separate file with the symbol table and debug information stripped from a module; nullptr if there is
/// none that belongs to it. Searched below each root, in this order: by build-id under
/// /usr/lib/debug/.build-id, then by the name in .gnu_debuglink beside the module, in .debug there, and under
/// /usr/lib/debug. Taken only if its build-id is the module's; where the module has none, if it has none
/// either and its CRC is that in .gnu_debuglink.
std::shared_ptr<Module> find_debug_file(const Module& module, std::span<const std::string> roots);

}  // namespace hangtrace::elf
