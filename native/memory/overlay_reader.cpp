#include "memory/overlay_reader.hpp"

#include <algorithm>

namespace hangtrace::memory {

std::vector<bool> OverlayReader::read_batch(std::span<const Piece> pieces) const {
  std::vector<bool> done(pieces.size(), false);
  std::vector<Piece> left;
  std::vector<std::size_t> left_index;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    auto it = copies_.upper_bound(piece.from);
    if (it != copies_.begin()) {
      --it;
      const Address offset = piece.from - it->first;
      if (offset <= it->second.size() && it->second.size() - offset >= piece.into.size()) {
        std::copy_n(it->second.begin() + static_cast<std::ptrdiff_t>(offset), piece.into.size(),
                    piece.into.begin());
        done[i] = true;
        continue;
      }
    }
    left.push_back(piece);
    left_index.push_back(i);
  }
  if (!left.empty()) {
    const std::vector<bool> behind = behind_.read_batch(left);
    for (std::size_t i = 0; i < left.size(); ++i) {
      done[left_index[i]] = behind[i];
    }
  }
  return done;
}

}  // namespace hangtrace::memory
