#pragma once

#include "unwind/machine_code.hpp"

namespace hangtrace::unwind::x86_64_decoder {

/// See MachineCode::read_prologue. Known: push rbp; mov rbp, rsp, and what compilers put around it.
Prologue read_prologue(Code before, bool whole, Code after);

}  // namespace hangtrace::unwind::x86_64_decoder
