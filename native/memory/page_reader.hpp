#pragma once

#include <array>
#include <memory>
#include <unordered_map>

#include "memory/reader.hpp"

namespace hangtrace::memory {

/// Remembers the pages it has read, so that many small reads of scattered objects cost one call per page.
/// What it shows is the past: forget() before each new look. One thread at a time.
class PageReader final : public Reader {
 public:
  explicit PageReader(const Reader& behind) : behind_(behind) {}

  std::vector<bool> read_batch(std::span<const Piece> pieces) const override;

  void forget() { pages_.clear(); }

 private:
  static constexpr std::size_t page_size = 4096;
  static constexpr std::size_t largest_piece = 4 * page_size;  // larger ones are read as they are
  static constexpr std::size_t most_pages = 8192;              // 32 MiB
  using Page = std::array<std::byte, page_size>;

  void load(std::span<const Piece> pieces) const;
  bool copy(const Piece& piece) const;

  const Reader& behind_;
  mutable std::unordered_map<Address, std::unique_ptr<Page>> pages_;  // by number; null: unreadable
};

}  // namespace hangtrace::memory
