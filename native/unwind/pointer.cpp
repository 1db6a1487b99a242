#include "unwind/pointer.hpp"

namespace hangtrace::unwind {

std::optional<elf::Address> read_pointer(elf::Cursor& cursor, std::uint8_t encoding,
                                         const PointerBase& base) {
  const elf::Address here = base.start + cursor.position();
  elf::Address value = 0;
  switch (encoding & 0x0f) {
    case 0x00:
    case 0x04:
    case 0x0c:
      value = cursor.value<std::uint64_t>();
      break;
    case 0x01:
      value = cursor.uleb();
      break;
    case 0x02:
      value = cursor.value<std::uint16_t>();
      break;
    case 0x03:
      value = cursor.value<std::uint32_t>();
      break;
    case 0x09:
      value = static_cast<elf::Address>(cursor.sleb());
      break;
    case 0x0a:
      value = static_cast<elf::Address>(std::int64_t{cursor.value<std::int16_t>()});
      break;
    case 0x0b:
      value = static_cast<elf::Address>(std::int64_t{cursor.value<std::int32_t>()});
      break;
    default:
      return std::nullopt;
  }
  if (!cursor.ok()) return std::nullopt;
  switch (encoding & 0xf0) {
    case 0x00:
      return value;
    case 0x10:
      return value + here;
    case 0x30:
      return value + base.data;
    default:  // text, function relative, aligned, indirect
      return std::nullopt;
  }
}

}  // namespace hangtrace::unwind
