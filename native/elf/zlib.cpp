#include "elf/zlib.hpp"

#ifdef HT_HAVE_ZLIB
#include <zlib.h>

#include <limits>
#endif

namespace hangtrace::elf {

#ifdef HT_HAVE_ZLIB

bool can_unpack_zlib() {
  return true;
}

std::optional<std::vector<std::byte>> unpack_zlib(std::span<const std::byte> packed, std::size_t size) {
  constexpr std::size_t most_growth = 1100;  // a little more than deflate can reach
  if (packed.size() > std::numeric_limits<uInt>::max() || size / most_growth > packed.size())
    return std::nullopt;
  std::vector<std::byte> unpacked(size);
  uLongf count = unpacked.size();
  const int result = ::uncompress(reinterpret_cast<Bytef*>(unpacked.data()), &count,
                                  reinterpret_cast<const Bytef*>(packed.data()), packed.size());
  if (result != Z_OK || count != size) return std::nullopt;
  return unpacked;
}

#else

bool can_unpack_zlib() {
  return false;
}

std::optional<std::vector<std::byte>> unpack_zlib(std::span<const std::byte>, std::size_t) {
  return std::nullopt;
}

#endif

}  // namespace hangtrace::elf
