#include "memory/reader.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace hangtrace::memory {

namespace {
constexpr std::size_t page_size = 4096;
}

bool Reader::read(Address from, std::span<std::byte> into) const {
  const Piece piece{from, into};
  const std::vector<bool> done = read_batch(std::span<const Piece>(&piece, 1));
  return !done.empty() && done.front();
}

std::optional<std::string> Reader::read_cstring(Address from, std::size_t max) const {
  std::string text;
  // Never crosses a page in one read: the string may end right before an unmapped page.
  while (text.size() < max) {
    std::array<std::byte, 256> chunk;
    const std::size_t to_page_end = page_size - (from + text.size()) % page_size;
    const std::size_t size = std::min({chunk.size(), max - text.size(), to_page_end});
    if (!read(from + text.size(), std::span(chunk).first(size))) {
      return std::nullopt;
    }
    const auto* characters = reinterpret_cast<const char*>(chunk.data());
    if (const void* end = std::memchr(characters, 0, size)) {
      text.append(characters, static_cast<const char*>(end));
      return text;
    }
    text.append(characters, size);
  }
  return std::nullopt;
}

}  // namespace hangtrace::memory
