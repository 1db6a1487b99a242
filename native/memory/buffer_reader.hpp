#pragma once

#include <map>

#include "memory/reader.hpp"

namespace hangtrace::memory {

/// Memory made of given bytes, for tests and saved evidence. Regions that touch or overlap are merged, so a
/// read may span regions that were added one by one; a byte added later wins.
class BufferReader final : public Reader {
 public:
  void add(Address from, std::span<const std::byte> bytes);

  template <class T>
  void add_value(Address from, const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    add(from, std::as_bytes(std::span<const T, 1>(&value, 1)));
  }

  std::vector<bool> read_batch(std::span<const Piece> pieces) const override;

 private:
  std::map<Address, std::vector<std::byte>> regions_;
};

}  // namespace hangtrace::memory
