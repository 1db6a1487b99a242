#pragma once

#include <vector>

#include "elf/module.hpp"

namespace hangtrace::elf {

/// .dynsym and its strings found as the dynamic linker finds them, for an image that was copied from memory
/// and so has no section headers. `dynamic`: va of the PT_DYNAMIC segment; `base`: what the dynamic linker
/// has added to the addresses in it. Linked by their positions in the result (0 and 1); empty if anything is
/// not as expected.
std::vector<Section> find_dynamic_symbols(const Module& module, Address dynamic, std::uint64_t size,
                                          Address base);

}  // namespace hangtrace::elf
