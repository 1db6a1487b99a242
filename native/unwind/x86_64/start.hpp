#pragma once

#include <optional>

#include "unwind/machine_code.hpp"

namespace hangtrace::unwind::x86_64_decoder {

/// See MachineCode::start_field.
std::optional<Address> start_field(Code before);

/// See MachineCode::main_function. The first argument of __libc_start_main (glibc, sysdeps/x86_64/start.S).
CallInstruction main_function(Code start, Address at);

}  // namespace hangtrace::unwind::x86_64_decoder
