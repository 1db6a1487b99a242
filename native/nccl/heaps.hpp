#pragma once

#include <optional>
#include <string>
#include <vector>

#include "elf/process_modules.hpp"
#include "memory/reader.hpp"
#include "nccl/search.hpp"
#include "proc/maps.hpp"

namespace hangtrace::nccl {

/// The memory in which everything lies that a module has got from malloc and calloc, in pieces of up to
/// `size` bytes: glibc keeps those in its main heap and in heaps of 64 MiB, apart from large arrays, stacks
/// and what other allocators have. nullopt: that is not certain; empty: the module never asked for any.
std::optional<std::vector<proc::Mapping>> malloc_heaps(elf::ProcessModules& modules,
                                                       const elf::Location& module, const PresentPages& pages,
                                                       const std::string& proc_root, int pid,
                                                       std::uint64_t size);

/// The single step that needs no module: the heaps among these mappings.
std::optional<std::vector<proc::Mapping>> heap_mappings(const memory::Reader& memory,
                                                        const std::vector<proc::Mapping>& mappings,
                                                        const PresentPages& pages);

}  // namespace hangtrace::nccl
