#pragma once

#include <cstdint>
#include <cstring>
#include <optional>

#include "unwind/machine_code.hpp"

// The few aarch64 instructions that are looked at (Arm Architecture Reference Manual, C4.1 and C6.2).
namespace hangtrace::unwind::aarch64_decoder {

inline constexpr unsigned sp_register = 31;
inline constexpr unsigned fp_register = 29;

/// The instruction at an offset; 0, which is undefined, where none is.
inline std::uint32_t word_at(Code code, std::size_t at) {
  std::uint32_t word = 0;
  if (at <= code.size() && code.size() - at >= 4) std::memcpy(&word, code.data() + at, 4);
  return word;
}

/// Bits [low, low + count) as a signed number.
inline std::int64_t signed_field(std::uint32_t word, unsigned low, unsigned count) {
  const std::uint64_t field = word >> low & ((std::uint64_t{1} << count) - 1);
  const std::uint64_t sign = std::uint64_t{1} << (count - 1);
  return static_cast<std::int64_t>(field ^ sign) - static_cast<std::int64_t>(sign);
}

inline unsigned rd(std::uint32_t word) {
  return word & 31;
}
inline unsigned rn(std::uint32_t word) {
  return word >> 5 & 31;
}

inline bool is_b(std::uint32_t word) {
  return (word & 0xfc000000) == 0x14000000;
}
inline bool is_bl(std::uint32_t word) {
  return (word & 0xfc000000) == 0x94000000;
}
inline bool is_blr(std::uint32_t word) {  // also with authentication
  return (word & 0xfffffc1f) == 0xd63f0000 || (word & 0xfefff800) == 0xd63f0800;
}
inline bool is_br(std::uint32_t word) {
  return (word & 0xfffffc1f) == 0xd61f0000 || (word & 0xfefff800) == 0xd61f0800;
}
inline bool is_ret(std::uint32_t word) {
  return (word & 0xfffffc1f) == 0xd65f0000 || (word & 0xfffffbff) == 0xd65f0bff;
}
inline bool is_bti(std::uint32_t word) {
  return (word & 0xffffff3f) == 0xd503241f;
}

/// Of b and bl.
inline Address branch_target(std::uint32_t word, Address at) {
  return at + static_cast<Address>(signed_field(word, 0, 26) * 4);
}

/// Of b.cond, cbz, cbnz, tbz and tbnz.
inline std::optional<Address> conditional_target(std::uint32_t word, Address at) {
  if ((word & 0xff000000) == 0x54000000 || (word & 0x7e000000) == 0x34000000)
    return at + static_cast<Address>(signed_field(word, 5, 19) * 4);
  if ((word & 0x7e000000) == 0x36000000) return at + static_cast<Address>(signed_field(word, 5, 14) * 4);
  return std::nullopt;
}

struct Adrp {
  Address page;
  unsigned target_register;
};
inline std::optional<Adrp> as_adrp(std::uint32_t word, Address at) {
  if ((word & 0x9f000000) != 0x90000000) return std::nullopt;
  const auto pages = signed_field(word, 5, 19) * 4 + static_cast<std::int64_t>(word >> 29 & 3);
  return Adrp{(at & ~Address{0xfff}) + static_cast<Address>(pages * 4096), rd(word)};
}

struct Load {
  unsigned target;
  unsigned base;
  Address offset;
};
/// ldr xT, [xN, offset]
inline std::optional<Load> as_load(std::uint32_t word) {
  if ((word & 0xffc00000) != 0xf9400000) return std::nullopt;
  return Load{rd(word), rn(word), Address{word >> 10 & 0xfff} * 8};
}

}  // namespace hangtrace::unwind::aarch64_decoder
