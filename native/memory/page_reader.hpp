#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "memory/reader.hpp"

namespace hangtrace::memory {

/// Remembers the pages it has read, so that many small reads of scattered objects cost one call per page.
/// What it shows is the past: begin() a look, and forget() what was read when it is over. What was used in
/// one look is read at once when the next one begins, which will mostly follow the same way. One thread at a
/// time.
class PageReader final : public Reader {
 public:
  // Smaller than a page of the machine: objects of an interpreter are small and far apart.
  static constexpr std::size_t page_size = 1024;

  explicit PageReader(const Reader& behind) : behind_(behind) {}

  std::vector<bool> read_batch(std::span<const Piece> pieces) const override;

  void begin();
  void forget();

 private:
  static constexpr std::size_t largest_piece = 16 * page_size;  // larger ones are read as they are
  static constexpr std::size_t most_pages = 32768;              // 32 MiB

  struct Range {  // of a page
    std::uint32_t from = page_size;
    std::uint32_t to = 0;
    bool holds(std::size_t begin, std::size_t end) const { return from <= begin && end <= to; }
  };
  struct Page {
    const std::byte* bytes = nullptr;  // those of `known`; null: unreadable
    Range known;
    Range used;
  };
  struct Wanted {
    Address page;
    Range range;
  };

  std::byte* allocate(std::size_t size) const;
  void load_wanted();
  void load(std::span<const Piece> pieces) const;
  void load(std::span<const Address> numbers) const;
  bool copy(const Piece& piece) const;

  const Reader& behind_;
  mutable std::unordered_map<Address, Page> pages_;  // by number
  mutable std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::vector<Wanted> wanted_;  // by page
};

}  // namespace hangtrace::memory
