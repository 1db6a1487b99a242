#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "unwind/registers.hpp"

// How the kernel orders a thread's user registers, for x86-64.
namespace hangtrace::registers {

inline constexpr int no_register = -1;

/// struct pt_regs (arch/x86/include/uapi/asm/ptrace.h), which is also how NT_PRSTATUS begins: r15 r14 r13 r12
/// rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss. For each word its DWARF number.
inline constexpr std::array<int, 21> pt_regs_order{
    15, 14, 13, 12, 6,           3,  11,          10,          9, 8,          0,
    2,  1,  4,  5,  no_register, 16, no_register, no_register, 7, no_register};
inline constexpr std::size_t pt_regs_words = pt_regs_order.size();
inline constexpr std::size_t pt_regs_orig_rax = 15;
inline constexpr std::size_t pt_regs_rip = 16;
inline constexpr std::size_t pt_regs_cs = 17;
inline constexpr std::size_t pt_regs_rsp = 19;

/// enum perf_event_x86_regs (arch/x86/include/uapi/asm/perf_regs.h): ax bx cx dx si di bp sp ip flags cs ss
/// ds es fs gs r8-r15. The kernel refuses ds, es, fs and gs of 64-bit programs.
inline constexpr std::array<int, 24> perf_order{
    0,  3,           2,           1,           4,           5,           6,           7,
    16, no_register, no_register, no_register, no_register, no_register, no_register, no_register,
    8,  9,           10,          11,          12,          13,          14,          15};

/// The bits of attr.sample_regs_user for those that have a DWARF number.
constexpr std::uint64_t perf_mask() {
  std::uint64_t mask = 0;
  for (std::size_t bit = 0; bit < perf_order.size(); ++bit) {
    if (perf_order[bit] != no_register) {
      mask |= std::uint64_t{1} << bit;
    }
  }
  return mask;
}

/// From struct pt_regs. In a system call rax, rcx and r11 are no longer the program's and stay unknown. False
/// if the thread does not run 64-bit code: `into` is not changed.
bool from_pt_regs(std::span<const std::uint64_t, pt_regs_words> words, unwind::Registers& into);

/// From the registers of a perf sample taken with perf_mask(), in its order. False if there are not as many.
bool from_perf(std::span<const std::uint64_t> values, unwind::Registers& into);

}  // namespace hangtrace::registers
