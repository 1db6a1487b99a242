#include "memory/buffer_reader.hpp"

#include <algorithm>

namespace hangtrace::memory {

void BufferReader::add(Address from, std::span<const std::byte> bytes) {
  Address start = from;
  std::vector<std::byte> merged(bytes.begin(), bytes.end());
  const auto end = [&] { return start + merged.size(); };
  auto it = regions_.upper_bound(from);
  if (it != regions_.begin()) {
    --it;
  }
  while (it != regions_.end() && it->first <= end()) {
    const Address other_end = it->first + it->second.size();
    if (other_end < start) {
      ++it;
      continue;
    }
    if (it->first < start) {
      merged.insert(merged.begin(), it->second.begin(),
                    it->second.begin() + static_cast<std::ptrdiff_t>(start - it->first));
      start = it->first;
    }
    if (other_end > end()) {
      merged.insert(merged.end(), it->second.end() - static_cast<std::ptrdiff_t>(other_end - end()),
                    it->second.end());
    }
    it = regions_.erase(it);
  }
  regions_[start] = std::move(merged);
}

std::vector<bool> BufferReader::read_batch(std::span<const Piece> pieces) const {
  std::vector<bool> done(pieces.size(), false);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    auto it = regions_.upper_bound(piece.from);
    if (it != regions_.begin()) {
      --it;
      const Address offset = piece.from - it->first;
      const std::vector<std::byte>& bytes = it->second;
      if (it->first <= piece.from && offset <= bytes.size() && bytes.size() - offset >= piece.into.size()) {
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), piece.into.size(),
                    piece.into.begin());
        done[i] = true;
        continue;
      }
    }
    std::ranges::fill(piece.into, std::byte{0});
  }
  return done;
}

}  // namespace hangtrace::memory
