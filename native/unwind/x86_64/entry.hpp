#pragma once

#include "unwind/machine_code.hpp"

namespace hangtrace::unwind::x86_64_decoder {

/// See MachineCode::read_entry.
EntryPath read_entry(Code before, Code after);

}  // namespace hangtrace::unwind::x86_64_decoder
