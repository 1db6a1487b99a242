#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace hangtrace::elf {

/// Reads little-endian values from untrusted bytes. Running over the end makes every later read fail and give
/// 0; test ok() before the values are used.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> data) : data_(data) {}

  bool ok() const { return ok_; }
  bool at_end() const { return position_ >= data_.size(); }
  std::size_t position() const { return position_; }
  std::size_t left() const { return data_.size() - position_; }

  template <class T>
  T value() {
    static_assert(std::is_integral_v<T>);
    T result{};
    const std::span<const std::byte> bytes = take(sizeof(T));
    if (bytes.size() == sizeof(T)) std::memcpy(&result, bytes.data(), sizeof(T));
    return result;
  }

  /// LEB128; bits over 64 are dropped, more than 10 bytes fail.
  std::uint64_t uleb() {
    std::uint64_t result = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
      const std::uint8_t byte = value<std::uint8_t>();
      if (shift < 64) result |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return result;
    }
    ok_ = false;
    return 0;
  }

  std::int64_t sleb() {
    std::uint64_t result = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
      const std::uint8_t byte = value<std::uint8_t>();
      if (shift < 64) result |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) != 0) continue;
      if ((byte & 0x40) != 0 && shift + 7 < 64) result |= ~std::uint64_t{0} << (shift + 7);
      return static_cast<std::int64_t>(result);
    }
    ok_ = false;
    return 0;
  }

  std::span<const std::byte> take(std::uint64_t count) {
    if (!ok_ || count > left()) {
      ok_ = false;
      position_ = data_.size();
      return {};
    }
    const auto result = data_.subspan(position_, count);
    position_ += count;
    return result;
  }

  void seek(std::uint64_t position) {
    if (position > data_.size()) {
      ok_ = false;
      position = data_.size();
    }
    position_ = position;
  }

  /// Text up to a NUL, which is consumed.
  std::string_view cstring() {
    const std::size_t length = ok_ ? text(position_).size() : 0;
    const auto bytes = take(length + 1);
    return bytes.empty() ? std::string_view{}
                         : std::string_view(reinterpret_cast<const char*>(bytes.data()), length);
  }

 private:
  std::string_view text(std::size_t from) const {
    const auto* begin = reinterpret_cast<const char*>(data_.data()) + from;
    const std::size_t most = data_.size() - from;
    const void* end = most == 0 ? nullptr : std::memchr(begin, 0, most);
    return {begin, end == nullptr ? most : static_cast<std::size_t>(static_cast<const char*>(end) - begin)};
  }

  std::span<const std::byte> data_;
  std::size_t position_ = 0;
  bool ok_ = true;
};

}  // namespace hangtrace::elf
