#pragma once

#include "unwind/machine_code.hpp"

namespace hangtrace::unwind {

/// Of the function [begin, end).
Prologue read_prologue(const elf::Module& module, Address begin, Address pc, Address end);

}  // namespace hangtrace::unwind
