#pragma once

#include "unwind/machine_code.hpp"

namespace hangtrace::unwind {

/// Decodes the code of [begin, pc); stops at the first instruction it does not know.
Prologue read_prologue(const elf::Module& module, Address begin, Address pc);

}  // namespace hangtrace::unwind
