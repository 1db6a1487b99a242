#include "torch/standard_types.hpp"

#include <algorithm>
#include <set>

namespace hangtrace::torch {

namespace {

constexpr std::size_t room_at = 16;     // in a string, and in a small vector
constexpr std::size_t most_short = 15;  // characters that fit into the string itself
constexpr std::size_t node_size = 32;   // _Rb_tree_node_base: colour, parent, left, right

struct Node {
  std::uint64_t colour;
  Address parent;
  Address left;
  Address right;
};

}  // namespace

bool is_pointer(Address address) {
  return address >= 4096 && address < (Address{1} << 56);
}

std::optional<std::string> read_string(const memory::Reader& memory, const Copy& copy, std::size_t at,
                                       std::size_t most) {
  const auto pointer = copy.load<Address>(at);
  const auto length = copy.load<std::uint64_t>(at + 8);
  if (length > most) {
    return std::nullopt;
  }
  std::string text(length, '\0');
  if (pointer == copy.base + at + room_at) {
    const Copy inside = copy.part(at + room_at, length);
    if (length > most_short || inside.bytes.size() != length) {
      return std::nullopt;
    }
    std::memcpy(text.data(), inside.bytes.data(), length);
    return text;
  }
  // A string that has been longer may keep its place.
  if (!is_pointer(pointer) || copy.load<std::uint64_t>(at + room_at) < std::max(length, most_short + 1)) {
    return std::nullopt;
  }
  if (length != 0 && !memory.read(pointer, std::as_writable_bytes(std::span(text)))) {
    return std::nullopt;
  }
  return text;
}

std::optional<std::vector<std::byte>> read_vector(const memory::Reader& memory, const Copy& copy,
                                                  std::size_t at, std::size_t size,
                                                  std::size_t most_elements) {
  const auto begin = copy.load<Address>(at);
  const auto end = copy.load<Address>(at + 8);
  const auto capacity = copy.load<Address>(at + 16);
  if (begin > end || end > capacity || (end - begin) % size != 0 || (end - begin) / size > most_elements) {
    return std::nullopt;
  }
  std::vector<std::byte> elements(end - begin);
  if (!elements.empty() && (!is_pointer(begin) || !memory.read(begin, elements))) {
    return std::nullopt;
  }
  return elements;
}

std::optional<std::vector<std::int64_t>> read_small_vector(const memory::Reader& memory, const Copy& copy,
                                                           std::size_t at, std::size_t most_elements) {
  const auto pointer = copy.load<Address>(at);
  const auto count = copy.load<std::uint32_t>(at + 8);
  const auto capacity = copy.load<std::uint32_t>(at + 12);
  if (count > capacity || count > most_elements) {
    return std::nullopt;
  }
  std::vector<std::int64_t> values(count);
  const auto bytes = std::as_writable_bytes(std::span(values));
  if (pointer == copy.base + at + room_at) {
    const Copy inside = copy.part(at + room_at, bytes.size());
    if (inside.bytes.size() != bytes.size()) {
      return std::nullopt;
    }
    std::ranges::copy(inside.bytes, bytes.begin());
    return values;
  }
  if (!is_pointer(pointer) || (count != 0 && !memory.read(pointer, bytes))) {
    return std::nullopt;
  }
  return values;
}

std::optional<std::vector<Address>> read_map(const memory::Reader& memory, const Copy& copy, std::size_t at,
                                             std::size_t most) {
  // The comparison takes a word, though it is empty.
  const Address header = copy.base + at + 8;
  const auto count = copy.load<std::uint64_t>(at + 8 + node_size);
  if (count > most) {
    return std::nullopt;
  }
  std::vector<Address> values;
  std::set<Address> seen;
  Address next = copy.load<Address>(at + 8 + 8);
  std::vector<std::pair<Address, Address>>
      open;  // nodes whose left side is being walked, with their right one
  while (next != 0 || !open.empty()) {
    if (next != 0) {
      const auto node = memory.read_value<Node>(next);
      if (!is_pointer(next) || next == header || !node || node->colour % (std::uint64_t{1} << 32) > 1 ||
          seen.size() == count || !seen.insert(next).second) {
        return std::nullopt;
      }
      open.emplace_back(next, node->right);
      next = node->left;
      continue;
    }
    values.push_back(open.back().first + node_size);
    next = open.back().second;
    open.pop_back();
  }
  return values.size() == count ? std::optional(std::move(values)) : std::nullopt;
}

std::optional<Address> outside_of(const Copy& copy, std::size_t at) {
  const auto pointer = copy.load<Address>(at);
  return is_pointer(pointer) && pointer != copy.base + at + room_at ? std::optional(pointer) : std::nullopt;
}

}  // namespace hangtrace::torch
