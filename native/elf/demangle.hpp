#pragma once

#include <string>

namespace hangtrace::elf {

/// The source name of a mangled C++ or (legacy) Rust name, Rust's without its hash; any other name as it is.
std::string demangle(const std::string& name);

}  // namespace hangtrace::elf
