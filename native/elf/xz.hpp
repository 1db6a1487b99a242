#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace hangtrace::elf {

/// Unpacks one .xz stream; nullopt if it is broken, gives more than `max` bytes, needs too much memory to
/// unpack, or if this build has no liblzma.
std::optional<std::vector<std::byte>> unpack_xz(std::span<const std::byte> packed, std::size_t max);

/// Whether this build can unpack.
bool can_unpack_xz();

}  // namespace hangtrace::elf
