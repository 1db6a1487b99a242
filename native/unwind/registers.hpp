#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "elf/module.hpp"

namespace hangtrace::unwind {

using memory::Address;

inline constexpr unsigned max_registers = 33;

/// What the evaluator must know of a machine; DWARF register numbers.
struct Layout {
  unsigned count;  // registers below this number are tracked
  unsigned stack_pointer;
  unsigned frame_pointer;
  unsigned return_address;     // column of the CIE, also where the PC is kept
  std::uint64_t caller_saved;  // bit i: lost over a call unless a rule says otherwise
};

/// System V AMD64: rax rdx rcx rbx rsi rdi rbp rsp r8-r15 rip.
inline constexpr Layout x86_64{17, 7, 6, 16, 0b0'0000'1111'0011'0111};

/// DWARF registers of one frame. A register that was not read from the machine or the stack is unknown and
/// stays so until a rule restores it; nothing is ever assumed.
class Registers {
 public:
  static Registers from_pc_sp(Address pc, Address sp, const Layout& layout = x86_64);
  bool has(unsigned number) const { return number < max_registers && (known_ >> number & 1) != 0; }
  std::optional<std::uint64_t> get(unsigned number) const;
  void set(unsigned number, std::uint64_t value);
  void forget(unsigned number);
  void forget_all(std::uint64_t mask) { known_ &= ~mask; }

 private:
  std::array<std::uint64_t, max_registers> values_{};
  std::uint64_t known_ = 0;
};

}  // namespace hangtrace::unwind
