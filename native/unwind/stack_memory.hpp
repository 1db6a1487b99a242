#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "memory/reader.hpp"
#include "proc/maps.hpp"

namespace hangtrace::unwind {

using memory::Address;

/// Memory of one thread while it is unwound: the copied part of its stack first, the rest in larger blocks
/// from the process.
class StackMemory {
 public:
  StackMemory(Address base, std::span<const std::byte> copy, const memory::Reader& reader,
              const std::vector<proc::Mapping>& mappings, bool only_copy = false)
      : base_(base), copy_(copy), reader_(reader), mappings_(mappings), only_copy_(only_copy) {}

  std::optional<std::uint64_t> word(Address address) const { return value<std::uint64_t>(address); }

  /// Whether anything was asked for that the copy does not hold.
  bool read_beyond_copy() const { return beyond_copy_; }

  template <class T>
  std::optional<T> value(Address address) const {
    T result;
    if (!read(address, std::as_writable_bytes(std::span(&result, 1)))) return std::nullopt;
    return result;
  }

  /// Whether the memory of the process may be told, not only a part of it.
  bool is_whole() const { return !only_copy_; }

 private:
  bool read(Address address, std::span<std::byte> into) const;
  bool read_block(Address address, std::span<std::byte> into) const;

  Address base_;
  std::span<const std::byte> copy_;
  const memory::Reader& reader_;
  const std::vector<proc::Mapping>& mappings_;
  bool only_copy_;
  mutable bool beyond_copy_ = false;
  struct Block {
    Address base = 0;
    std::vector<std::byte> bytes;
  };
  mutable std::unordered_map<Address, Block> blocks_;
};

}  // namespace hangtrace::unwind
