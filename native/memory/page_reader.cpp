#include "memory/page_reader.hpp"

#include <algorithm>

namespace hangtrace::memory {

void PageReader::begin() {
  pages_.clear();
  blocks_.clear();
  load_wanted();
}

void PageReader::forget() {
  if (pages_.empty()) {
    return;
  }
  wanted_.clear();
  for (const auto& [number, page] : pages_) {
    if (page.bytes != nullptr && page.used.from < page.used.to) {
      wanted_.push_back({number, page.used});
    }
  }
  std::ranges::sort(wanted_, {}, &Wanted::page);
  pages_.clear();
  blocks_.clear();
}

std::byte* PageReader::allocate(std::size_t size) const {
  return blocks_.emplace_back(std::make_unique_for_overwrite<std::byte[]>(size)).get();
}

// What cannot be read now is tried again when it is asked for. The kernel's work is per piece and per page of
// the machine, so what lies between two ranges of one such page is read as well.
void PageReader::load_wanted() {
  constexpr Address machine_page = 4096;
  struct Extent {
    Address begin;
    Address end;
  };
  std::vector<Extent> extents;
  std::vector<std::size_t> extent_of;
  for (const Wanted& wanted : wanted_) {
    const Address begin = wanted.page * page_size + wanted.range.from;
    const Address end = wanted.page * page_size + wanted.range.to;
    if (!extents.empty() && extents.back().begin / machine_page == begin / machine_page) {
      extents.back().end = end;
    } else {
      extents.push_back({begin, end});
    }
    extent_of.push_back(extents.size() - 1);
  }
  if (extents.empty()) {
    return;
  }
  std::size_t size = 0;
  for (const Extent& extent : extents) {
    size += extent.end - extent.begin;
  }
  std::byte* next = allocate(size);
  std::vector<Piece> pieces;
  pieces.reserve(extents.size());
  for (const Extent& extent : extents) {
    pieces.push_back({extent.begin, std::span(next, extent.end - extent.begin)});
    next += extent.end - extent.begin;
  }
  const std::vector<bool> done = behind_.read_batch(pieces);
  pages_.reserve(wanted_.size());
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    const Piece& piece = pieces[extent_of[i]];
    if (done[extent_of[i]]) {
      const Address begin = wanted_[i].page * page_size + wanted_[i].range.from;
      pages_[wanted_[i].page] = {piece.into.data() + (begin - piece.from), wanted_[i].range, {}};
    }
  }
}

void PageReader::load(std::span<const Piece> pieces) const {
  std::vector<Address> numbers;
  for (const Piece& piece : pieces) {
    if (piece.into.empty() || piece.into.size() > largest_piece) {
      continue;
    }
    const Address end = piece.from + piece.into.size();
    for (Address number = piece.from / page_size; number <= (end - 1) / page_size; ++number) {
      const auto page = pages_.find(number);
      const std::size_t from = std::max(piece.from, number * page_size) - number * page_size;
      const std::size_t to = std::min(end - number * page_size, Address{page_size});
      if (page == pages_.end() || !page->second.known.holds(from, to)) {
        numbers.push_back(number);
      }
    }
  }
  if (numbers.empty()) {
    return;
  }
  std::ranges::sort(numbers);
  numbers.erase(std::ranges::unique(numbers).begin(), numbers.end());
  if (pages_.size() + numbers.size() > most_pages) {
    pages_.clear();
    blocks_.clear();
  }
  load(numbers);
}

void PageReader::load(std::span<const Address> numbers) const {
  std::byte* const block = allocate(numbers.size() * page_size);
  std::vector<Piece> wanted;
  wanted.reserve(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    wanted.push_back({numbers[i] * page_size, std::span(block + i * page_size, page_size)});
  }
  const std::vector<bool> done = behind_.read_batch(wanted);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    Page& page = pages_[numbers[i]];
    page.bytes = done[i] ? wanted[i].into.data() : nullptr;
    page.known = {0, page_size};
  }
}

bool PageReader::copy(const Piece& piece) const {
  std::size_t copied = 0;
  while (copied < piece.into.size()) {
    const Address at = piece.from + copied;
    const std::size_t offset = at % page_size;
    const std::size_t size = std::min(page_size - offset, piece.into.size() - copied);
    const auto found = pages_.find(at / page_size);
    // Not there if the pages of one batch are more than are kept.
    if (found == pages_.end() || found->second.bytes == nullptr ||
        !found->second.known.holds(offset, offset + size)) {
      std::ranges::fill(piece.into, std::byte{0});
      return false;
    }
    Page& page = found->second;
    page.used = {std::min(page.used.from, static_cast<std::uint32_t>(offset)),
                 std::max(page.used.to, static_cast<std::uint32_t>(offset + size))};
    std::copy_n(page.bytes + (offset - page.known.from), size,
                piece.into.begin() + static_cast<std::ptrdiff_t>(copied));
    copied += size;
  }
  return true;
}

std::vector<bool> PageReader::read_batch(std::span<const Piece> pieces) const {
  load(pieces);
  std::vector<bool> done(pieces.size(), false);
  std::vector<Piece> large;
  std::vector<std::size_t> large_index;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].into.size() > largest_piece) {
      large.push_back(pieces[i]);
      large_index.push_back(i);
    } else {
      done[i] = copy(pieces[i]);
    }
  }
  if (!large.empty()) {
    const std::vector<bool> read = behind_.read_batch(large);
    for (std::size_t i = 0; i < large.size(); ++i) {
      done[large_index[i]] = read[i];
    }
  }
  return done;
}

}  // namespace hangtrace::memory
