#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "elf/module.hpp"

namespace hangtrace::elf {

/// va of the words through which a module reaches functions of these names in other modules. In a process
/// they hold the function's address; where it is bound late and was never called, one in the module itself.
std::vector<Address> import_slots(const Module& module, std::span<const std::string_view> names);

}  // namespace hangtrace::elf
