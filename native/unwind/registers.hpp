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
  elf::Machine machine;
  unsigned count;  // registers below this number are tracked
  unsigned stack_pointer;
  unsigned frame_pointer;
  unsigned program_counter;  // where the PC is kept
  unsigned link_register;    // in which a function is handed its return address; max_registers: on the stack
  std::uint64_t caller_saved;   // bit i: lost over a call unless a rule says otherwise
  bool signs_return_addresses;  // the bits above those of an address may hold a signature
  /// In which a system call is handed its arguments and which it leaves as they are; max_registers: not.
  std::array<unsigned, 6> call_arguments;
};

/// System V AMD64: rax rdx rcx rbx rsi rdi rbp rsp r8-r15 rip.
inline constexpr Layout x86_64{
    elf::Machine::x86_64, 17, 7, 6, 16, max_registers, 0b0'0000'1111'0011'0111, false, {5, 4, 1, 10, 8, 9}};

/// DWARF for the Arm 64-bit Architecture (AADWARF64): x0-x30, sp 31, pc 32. By AAPCS64 a call loses x0-x18
/// and x30.
inline constexpr Layout aarch64{elf::Machine::aarch64,         32, 31, 29, 32, 30, 0x4007'ffff, true,
                                {max_registers, 1, 2, 3, 4, 5}};

/// Of the machine this is built for.
#ifdef __aarch64__
inline constexpr const Layout& host_layout = aarch64;
#else
inline constexpr const Layout& host_layout = x86_64;
#endif

/// DWARF registers of one frame. A register that was not read from the machine or the stack is unknown and
/// stays so until a rule restores it; nothing is ever assumed.
class Registers {
 public:
  /// `layout` must outlive it.
  explicit Registers(const Layout& layout = host_layout) : layout_(&layout) {}
  static Registers from_pc_sp(Address pc, Address sp, const Layout& layout = host_layout);
  const Layout& layout() const { return *layout_; }
  bool has(unsigned number) const { return number < max_registers && (known_ >> number & 1) != 0; }
  std::optional<std::uint64_t> get(unsigned number) const;
  void set(unsigned number, std::uint64_t value);
  void forget(unsigned number);
  void forget_all(std::uint64_t mask) { known_ &= ~mask; }

 private:
  const Layout* layout_;
  std::array<std::uint64_t, max_registers> values_{};
  std::uint64_t known_ = 0;
};

}  // namespace hangtrace::unwind
