#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace hangtrace::elf {

/// Whether this build can decompress sections (it was built with zlib).
bool can_unpack_zlib();

/// The bytes of a zlib stream (RFC 1950); nullopt if it is damaged or its content is not `size` bytes long.
std::optional<std::vector<std::byte>> unpack_zlib(std::span<const std::byte> packed, std::size_t size);

}  // namespace hangtrace::elf
