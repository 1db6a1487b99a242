#include "elf/xz.hpp"

#ifdef HT_HAVE_LZMA
#include <lzma.h>

#include <algorithm>
#endif

namespace hangtrace::elf {

#ifdef HT_HAVE_LZMA

bool can_unpack_xz() {
  return true;
}

std::optional<std::vector<std::byte>> unpack_xz(std::span<const std::byte> packed, std::size_t max) {
  constexpr std::uint64_t memory_limit = 64 << 20;
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, memory_limit, 0) != LZMA_OK) return std::nullopt;
  stream.next_in = reinterpret_cast<const std::uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::vector<std::byte> unpacked;
  lzma_ret result = LZMA_OK;
  while (result == LZMA_OK && unpacked.size() < max) {
    const std::size_t done = unpacked.size();
    // New memory costs more than unpacking does, and a table of symbols is small.
    const std::size_t step = std::min({max - done, std::max(done, 4 * packed.size()), std::size_t{1} << 20});
    unpacked.resize(done + step);
    stream.next_out = reinterpret_cast<std::uint8_t*>(unpacked.data() + done);
    stream.avail_out = step;
    result = lzma_code(&stream, LZMA_FINISH);
    unpacked.resize(done + step - stream.avail_out);
    if (result == LZMA_OK && unpacked.size() == done) break;
  }
  lzma_end(&stream);
  if (result != LZMA_STREAM_END) return std::nullopt;
  return unpacked;
}

#else

bool can_unpack_xz() {
  return false;
}

std::optional<std::vector<std::byte>> unpack_xz(std::span<const std::byte>, std::size_t) {
  return std::nullopt;
}

#endif

}  // namespace hangtrace::elf
