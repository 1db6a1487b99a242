#pragma once

#include "unwind/machine_code.hpp"

namespace hangtrace::unwind::aarch64_decoder {

/// See MachineCode::read_prologue. The frame pointer is set by `add x29, sp, offset` (or `mov x29, sp`).
Prologue read_prologue(Code function, bool whole);

}  // namespace hangtrace::unwind::aarch64_decoder
