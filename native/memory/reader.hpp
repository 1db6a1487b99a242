#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hangtrace::memory {

using Address = std::uint64_t;

/// One range to read: `into.size()` bytes starting at `from`.
struct Piece {
  Address from = 0;
  std::span<std::byte> into;
};

/// The one interface through which another process's memory is read.
class Reader {
 public:
  virtual ~Reader() = default;

  /// Reads every piece. result[i] says whether piece i was read whole; a piece that was not is zeroed.
  /// Never throws for an unreadable range.
  virtual std::vector<bool> read_batch(std::span<const Piece> pieces) const = 0;

  bool read(Address from, std::span<std::byte> into) const;

  template <class T>
  std::optional<T> read_value(Address from) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (!read(from, std::as_writable_bytes(std::span<T, 1>(&value, 1)))) {
      return std::nullopt;
    }
    return value;
  }

  /// Bytes up to, without, the first NUL; nullopt if unreadable or no NUL within `max` bytes.
  std::optional<std::string> read_cstring(Address from, std::size_t max) const;
};

}  // namespace hangtrace::memory
