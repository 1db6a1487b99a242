#include "memory/page_reader.hpp"

#include <algorithm>

namespace hangtrace::memory {

void PageReader::load(std::span<const Piece> pieces) const {
  std::vector<Address> numbers;
  for (const Piece& piece : pieces) {
    if (piece.into.empty() || piece.into.size() > largest_piece) {
      continue;
    }
    const Address last = (piece.from + piece.into.size() - 1) / page_size;
    for (Address number = piece.from / page_size; number <= last; ++number) {
      if (!pages_.contains(number)) {
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
  }
  std::vector<std::unique_ptr<Page>> loaded;
  std::vector<Piece> wanted;
  for (const Address number : numbers) {
    loaded.push_back(std::make_unique<Page>());
    wanted.push_back({number * page_size, *loaded.back()});
  }
  const std::vector<bool> done = behind_.read_batch(wanted);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    pages_[numbers[i]] = done[i] ? std::move(loaded[i]) : nullptr;
  }
}

bool PageReader::copy(const Piece& piece) const {
  std::size_t copied = 0;
  while (copied < piece.into.size()) {
    const Address at = piece.from + copied;
    const auto page = pages_.find(at / page_size);
    if (page == pages_.end() || page->second == nullptr) {
      std::ranges::fill(piece.into, std::byte{0});
      return false;
    }
    const std::size_t offset = at % page_size;
    const std::size_t size = std::min(page_size - offset, piece.into.size() - copied);
    std::copy_n(page->second->begin() + static_cast<std::ptrdiff_t>(offset), size,
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
