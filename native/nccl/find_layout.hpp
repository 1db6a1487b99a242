#pragma once

#include <chrono>
#include <optional>
#include <span>

#include "elf/module.hpp"
#include "nccl/layout.hpp"

namespace hangtrace::nccl {

using Deadline = std::chrono::steady_clock::time_point;

/// The layout of a library of NCCL, from the best source there is: its own debug information, the table of
/// published builds, that of the release that it says it is, the code of exported functions, what all
/// releases have in common.
Layout find_layout(elf::Module& library, Deadline deadline);

/// The single steps; nullopt: this source does not know it.
std::optional<Layout> layout_from_dwarf(const elf::Module& library, Deadline deadline);
std::optional<Layout> layout_from_table(const elf::Module& library);
std::optional<Layout> layout_from_code(elf::Module& library);
/// `seen`: what its code tells.
std::optional<Layout> layout_from_release(const elf::Module& library, const Layout& seen);

/// Without any library: the members from the hash to the bus id, which stand in the same order in all
/// releases. Offsets count from the hash. `nvml`: since 2.19.
Layout layout_of_fingerprint(bool nvml);

/// Displacement of the one load "mov disp32(base), r32" in the code of a function of x86-64 (several equal
/// ones count once), or without `only_one` the largest of several; nullopt if there is none.
std::optional<std::uint32_t> load_displacement(std::span<const std::byte> code, bool only_one);

}  // namespace hangtrace::nccl
