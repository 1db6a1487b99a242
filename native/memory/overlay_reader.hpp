#pragma once

#include <map>
#include <span>
#include <vector>

#include "memory/reader.hpp"

namespace hangtrace::memory {

/// Memory as it was copied at one moment, in front of a reader of the memory as it is now. A range that is
/// not wholly inside one copy is read from behind.
class OverlayReader final : public Reader {
 public:
  explicit OverlayReader(const Reader& behind) : behind_(behind) {}

  /// The view is valid as long as the reader. A second copy with the same start is dropped for the first.
  std::span<const std::byte> add(Address from, std::vector<std::byte> bytes) {
    return copies_.try_emplace(from, std::move(bytes)).first->second;
  }

  std::vector<bool> read_batch(std::span<const Piece> pieces) const override;

 private:
  const Reader& behind_;
  std::map<Address, std::vector<std::byte>> copies_;
};

}  // namespace hangtrace::memory
