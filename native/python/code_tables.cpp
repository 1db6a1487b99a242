#include "python/code_tables.hpp"

namespace hangtrace::python {
namespace {

class Cursor {
 public:
  explicit Cursor(Bytes table) : table_(table) {}
  bool at_end() const { return position_ >= table_.size(); }
  std::uint8_t next() { return at_end() ? 0 : std::to_integer<std::uint8_t>(table_[position_++]); }

  // Six bits a byte, lowest first; bit 6 says that more follow.
  std::uint32_t varint() {
    std::uint32_t value = 0;
    for (int shift = 0; shift < 32 && !at_end(); shift += 6) {
      const std::uint8_t byte = next();
      value |= static_cast<std::uint32_t>(byte & 63) << shift;
      if ((byte & 64) == 0) break;
    }
    return value;
  }

  std::int64_t signed_varint() {
    const std::uint32_t value = varint();
    return (value & 1) ? -static_cast<std::int64_t>(value >> 1) : static_cast<std::int64_t>(value >> 1);
  }

  // Six bits a byte, highest first; bit 6 says that more follow, bit 7 marks the start of an entry.
  std::uint32_t big_endian_varint() {
    std::uint8_t byte = next();
    std::uint32_t value = byte & 63;
    for (int more = 0; (byte & 64) && more < 5 && !at_end(); ++more) {
      byte = next();
      value = (value << 6) | (byte & 63);
    }
    return value;
  }

 private:
  Bytes table_;
  std::size_t position_ = 0;
};

int as_line(std::int64_t line) {
  return line > 0 && line <= INT32_MAX ? static_cast<int>(line) : 0;
}

}  // namespace

int line_in_locations(Bytes table, int first_line, std::int64_t unit) {
  if (unit < 0) return as_line(first_line);
  Cursor cursor(table);
  std::int64_t line = first_line;
  std::int64_t start = 0;
  while (!cursor.at_end()) {
    const std::uint8_t head = cursor.next();
    if ((head & 128) == 0) return 0;  // not the start of an entry: the table is damaged
    const int kind = (head >> 3) & 15;
    const std::int64_t end = start + (head & 7) + 1;
    bool has_line = true;
    if (kind == 15) {
      has_line = false;
    } else if (kind == 14) {
      line += cursor.signed_varint();
      cursor.varint();
      cursor.varint();
      cursor.varint();
    } else if (kind == 13) {
      line += cursor.signed_varint();
    } else if (kind >= 10) {
      line += kind - 10;
      cursor.next();
      cursor.next();
    } else {
      cursor.next();
    }
    if (unit < end) return has_line ? as_line(line) : 0;
    start = end;
  }
  return 0;
}

int line_in_ranges(Bytes table, int first_line, std::int64_t offset) {
  if (offset < 0) return as_line(first_line);
  Cursor cursor(table);
  std::int64_t line = first_line;
  std::int64_t end = 0;
  while (!cursor.at_end()) {
    end += cursor.next();
    const auto delta = static_cast<std::int8_t>(cursor.next());
    if (delta != -128) line += delta;
    if (offset < end) return delta == -128 ? 0 : as_line(line);
  }
  return 0;
}

int line_in_lnotab(Bytes table, int first_line, std::int64_t offset) {
  Cursor cursor(table);
  std::int64_t line = first_line;
  std::int64_t start = 0;
  while (!cursor.at_end()) {
    start += cursor.next();
    const auto delta = static_cast<std::int8_t>(cursor.next());
    if (start > offset) break;
    line += delta;
  }
  return as_line(line);
}

std::optional<std::size_t> handler_depth(Bytes table, std::int64_t unit) {
  if (unit < 0) return std::nullopt;
  Cursor cursor(table);
  while (!cursor.at_end()) {  // entries do not overlap and are sorted by start
    const std::int64_t start = cursor.big_endian_varint();
    const std::int64_t size = cursor.big_endian_varint();
    cursor.big_endian_varint();  // target
    const std::uint32_t depth_and_lasti = cursor.big_endian_varint();
    if (unit < start) return std::nullopt;
    if (unit < start + size) return depth_and_lasti >> 1;
  }
  return std::nullopt;
}

}  // namespace hangtrace::python
