#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace hangtrace::proc {

/// The value of each character as a digit of a hexadecimal number as the kernel writes it, 16 for all others.
inline constexpr auto hex_digits = [] {
  std::array<std::uint8_t, 256> values{};
  values.fill(16);
  for (unsigned digit = 0; digit < 16; ++digit) {
    values[static_cast<unsigned char>("0123456789abcdef"[digit])] = static_cast<std::uint8_t>(digit);
  }
  return values;
}();

/// A cursor over the text of a pseudo file. Every step says whether it matched; none reads past the end.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  bool done() const { return at_ == end_; }
  char peek() const { return done() ? '\0' : *at_; }
  std::string_view rest() const { return {at_, static_cast<std::size_t>(end_ - at_)}; }

  bool skip(char expected) {
    if (done() || *at_ != expected) {
      return false;
    }
    ++at_;
    return true;
  }

  void skip_spaces() {
    while (!done() && (*at_ == ' ' || *at_ == '\t')) {
      ++at_;
    }
  }

  bool take(char& character) {
    if (done()) {
      return false;
    }
    character = *at_++;
    return true;
  }

  bool hex(std::uint64_t& value) {
    const char* const start = at_;
    std::uint64_t number = 0;
    for (; !done(); ++at_) {
      const unsigned digit = hex_digits[static_cast<unsigned char>(*at_)];
      if (digit > 15) {
        break;
      }
      number = number << 4 | digit;
    }
    value = number;
    return at_ != start;
  }

  bool decimal(std::uint64_t& value) {
    const char* const start = at_;
    std::uint64_t number = 0;
    while (!done() && *at_ >= '0' && *at_ <= '9') {
      number = number * 10 + static_cast<unsigned>(*at_ - '0');
      ++at_;
    }
    value = number;
    return at_ != start;
  }

  bool integer(std::int64_t& value) {
    const bool negative = skip('-');
    std::uint64_t magnitude = 0;
    if (!decimal(magnitude)) {
      return false;
    }
    value = negative ? -static_cast<std::int64_t>(magnitude) : static_cast<std::int64_t>(magnitude);
    return true;
  }

  /// Up to the next space or the end.
  std::string_view word() {
    skip_spaces();
    const char* const start = at_;
    while (!done() && *at_ != ' ' && *at_ != '\t' && *at_ != '\n') {
      ++at_;
    }
    return {start, static_cast<std::size_t>(at_ - start)};
  }

 private:
  const char* at_;
  const char* end_;
};

/// Takes the next line, without its newline, from `text`; false at the end.
inline bool next_line(std::string_view& text, std::string_view& line) {
  if (text.empty()) {
    return false;
  }
  const std::size_t end = text.find('\n');
  line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return true;
}

}  // namespace hangtrace::proc
