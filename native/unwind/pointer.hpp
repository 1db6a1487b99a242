#pragma once

#include <cstdint>
#include <optional>

#include "elf/cursor.hpp"
#include "elf/module.hpp"

namespace hangtrace::unwind {

inline constexpr std::uint8_t pointer_omitted = 0xff;  // DW_EH_PE_omit

/// What relative pointers are relative to.
struct PointerBase {
  elf::Address start = 0;               // va of the cursor's first byte, for DW_EH_PE_pcrel
  elf::Address data = 0;                // for DW_EH_PE_datarel
  const elf::Module* module = nullptr;  // for DW_EH_PE_textrel and DW_EH_PE_indirect; null: these fail
};

/// Reads a pointer in a DW_EH_PE_* encoding (LSB, "DWARF Exception Header Encoding"); nullopt if it is not
/// there or the encoding is not one of code addresses.
std::optional<elf::Address> read_pointer(elf::Cursor& cursor, std::uint8_t encoding, const PointerBase& base);

}  // namespace hangtrace::unwind
