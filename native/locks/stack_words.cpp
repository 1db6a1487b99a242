#include <algorithm>

#include "locks/decoder.hpp"

namespace hangtrace::locks {

namespace {

constexpr std::size_t largest_frame = 8192;  // bytes

}  // namespace

std::vector<std::uint64_t> Decoder::stack_words(Address begin, Address end) const {
  if (end <= begin) {
    return {};
  }
  std::vector<std::uint64_t> words(std::min<std::size_t>(end - begin, largest_frame) / sizeof(std::uint64_t));
  if (words.empty() || !process_.reader.read(begin, std::as_writable_bytes(std::span(words)))) {
    return {};
  }
  return words;
}

std::vector<Address> Decoder::pointers_on_stack(Address begin, Address end) const {
  std::vector<Address> pointers = stack_words(begin, end);
  std::erase_if(pointers, [](Address address) { return address % alignof(std::uint64_t) != 0; });
  std::ranges::sort(pointers);
  const auto repeated = std::ranges::unique(pointers);
  pointers.erase(repeated.begin(), repeated.end());
  return pointers;
}

}  // namespace hangtrace::locks
