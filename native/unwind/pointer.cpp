#include "unwind/pointer.hpp"

namespace hangtrace::unwind {

namespace {

constexpr std::uint8_t aligned = 0x50;
constexpr std::uint8_t indirect = 0x80;

}  // namespace

std::optional<elf::Address> read_pointer(elf::Cursor& cursor, std::uint8_t encoding,
                                         const PointerBase& base) {
  if (encoding == aligned) {
    const elf::Address at = base.start + cursor.position();
    cursor.take((8 - at % 8) % 8);
    encoding = 0;
  }
  const elf::Address here = base.start + cursor.position();
  elf::Address value = 0;
  switch (encoding & 0x0f) {
    case 0x00:  // DW_EH_PE_absptr
    case 0x04:  // udata8
    case 0x0c:  // sdata8
      value = cursor.value<std::uint64_t>();
      break;
    case 0x01:  // uleb128
      value = cursor.uleb();
      break;
    case 0x02:  // udata2
      value = cursor.value<std::uint16_t>();
      break;
    case 0x03:  // udata4
      value = cursor.value<std::uint32_t>();
      break;
    case 0x09:  // sleb128
      value = static_cast<elf::Address>(cursor.sleb());
      break;
    case 0x0a:  // sdata2
      value = static_cast<elf::Address>(std::int64_t{cursor.value<std::int16_t>()});
      break;
    case 0x0b:  // sdata4
      value = static_cast<elf::Address>(std::int64_t{cursor.value<std::int32_t>()});
      break;
    default:
      return std::nullopt;
  }
  if (!cursor.ok()) return std::nullopt;
  switch (encoding & 0x70) {
    case 0x00:
      break;
    case 0x10:  // DW_EH_PE_pcrel
      value += here;
      break;
    case 0x20: {  // DW_EH_PE_textrel
      const elf::Section* text = base.module == nullptr ? nullptr : base.module->section(".text");
      if (text == nullptr) return std::nullopt;
      value += text->va;
      break;
    }
    case 0x30:  // DW_EH_PE_datarel
      value += base.data;
      break;
    default:  // relative to the function: not for the function's own address
      return std::nullopt;
  }
  if ((encoding & indirect) == 0) return value;
  // As linked: a pointer that the dynamic linker fills in reads as 0.
  return base.module == nullptr ? std::nullopt : base.module->value_at<elf::Address>(value);
}

}  // namespace hangtrace::unwind
