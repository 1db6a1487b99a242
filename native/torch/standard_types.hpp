#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/reader.hpp"

// Objects of C++ in another process' memory: libstdc++ in its new ABI and c10::SmallVector, 64-bit. Whatever
// does not look like one is nullopt.
namespace hangtrace::torch {

using memory::Address;

/// Memory that was copied, and where it lay: objects of these types point into themselves.
struct Copy {
  std::span<const std::byte> bytes;
  Address base = 0;

  template <class T>
  T load(std::size_t at) const {
    T value{};
    if (at <= bytes.size() && sizeof value <= bytes.size() - at) {
      std::memcpy(&value, bytes.data() + at, sizeof value);
    }
    return value;
  }
  Copy part(std::size_t at, std::size_t size) const {
    const std::size_t from = std::min(at, bytes.size());
    return {bytes.subspan(from, std::min(size, bytes.size() - from)), base + from};
  }
};

/// True for what can be the address of an object.
bool is_pointer(Address address);

/// std::string (bits/basic_string.h): pointer, length, room for 15 characters.
std::optional<std::string> read_string(const memory::Reader& memory, const Copy& copy, std::size_t at,
                                       std::size_t most);

/// The elements of a std::vector of elements of `size` bytes.
std::optional<std::vector<std::byte>> read_vector(const memory::Reader& memory, const Copy& copy,
                                                  std::size_t at, std::size_t size,
                                                  std::size_t most_elements);

/// c10::SmallVector<std::int64_t, N>: pointer, size and capacity of 32 bits each, room for N.
std::optional<std::vector<std::int64_t>> read_small_vector(const memory::Reader& memory, const Copy& copy,
                                                           std::size_t at, std::size_t most_elements);

/// Where the values of a std::map lie, in its order (bits/stl_tree.h).
std::optional<std::vector<Address>> read_map(const memory::Reader& memory, const Copy& copy, std::size_t at,
                                             std::size_t most);

/// Where a string or a vector of any kind keeps what is not in itself; nullopt: nowhere. To read much of it
/// at once.
std::optional<Address> outside_of(const Copy& copy, std::size_t at);

}  // namespace hangtrace::torch
