#include <asm/perf_regs.h>
#include <doctest/doctest.h>
#include <sys/user.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <vector>

#include "registers/machine.hpp"
#include "registers/status.hpp"

using namespace hangtrace;
using namespace hangtrace::registers;

#if defined(__x86_64__)

namespace {

constexpr std::uint64_t user64_cs = 0x33;

user_regs_struct numbered() {
  user_regs_struct regs{};
  regs.rax = 100, regs.rdx = 101, regs.rcx = 102, regs.rbx = 103, regs.rsi = 104, regs.rdi = 105;
  regs.rbp = 106, regs.rsp = 107, regs.r8 = 108, regs.r9 = 109, regs.r10 = 110, regs.r11 = 111;
  regs.r12 = 112, regs.r13 = 113, regs.r14 = 114, regs.r15 = 115, regs.rip = 116;
  regs.orig_rax = ~0ULL;
  regs.cs = user64_cs;
  return regs;
}

std::span<const std::uint64_t, pt_regs_words> words(const user_regs_struct& regs) {
  return std::span<const std::uint64_t, pt_regs_words>(reinterpret_cast<const std::uint64_t*>(&regs),
                                                       pt_regs_words);
}

}  // namespace

TEST_CASE("every word of pt_regs gets its DWARF number") {
  const user_regs_struct regs = numbered();
  unwind::Registers found;
  REQUIRE(from_pt_regs(words(regs), found));
  for (unsigned number = 0; number < unwind::x86_64.count; ++number) CHECK(found.get(number) == 100 + number);
  CHECK(offsetof(user_regs_struct, rip) == 8 * pt_regs_rip);
  CHECK(offsetof(user_regs_struct, rsp) == 8 * pt_regs_rsp);
  CHECK(offsetof(user_regs_struct, cs) == 8 * pt_regs_cs);
  CHECK(offsetof(user_regs_struct, orig_rax) == 8 * pt_regs_orig_rax);
}

TEST_CASE("what a system call overwrites is not known") {
  user_regs_struct regs = numbered();
  regs.orig_rax = 202;
  unwind::Registers found;
  REQUIRE(from_pt_regs(words(regs), found));
  CHECK_FALSE(found.has(0));
  CHECK_FALSE(found.has(2));
  CHECK_FALSE(found.has(11));
  CHECK(found.get(6) == 106);
}

TEST_CASE("a thread in the kernel or in 32-bit code has no registers for us") {
  for (const std::uint64_t cs : {0x23ULL, 0x10ULL, 0ULL}) {
    user_regs_struct regs = numbered();
    regs.cs = cs;
    unwind::Registers found;
    CHECK_FALSE(from_pt_regs(words(regs), found));
    CHECK_FALSE(found.has(16));
  }
}

TEST_CASE("registers of a sample are told apart by the order of their bits") {
  constexpr std::uint64_t wanted =
      1ULL << PERF_REG_X86_AX | 1ULL << PERF_REG_X86_BX | 1ULL << PERF_REG_X86_CX | 1ULL << PERF_REG_X86_DX |
      1ULL << PERF_REG_X86_SI | 1ULL << PERF_REG_X86_DI | 1ULL << PERF_REG_X86_BP | 1ULL << PERF_REG_X86_SP |
      1ULL << PERF_REG_X86_IP | 0xffULL << PERF_REG_X86_R8;
  CHECK(perf_mask() == wanted);
  // ax bx cx dx si di bp sp ip r8-r15, each with 100 + its DWARF number.
  std::vector<std::uint64_t> values{100, 103, 102, 101, 104, 105, 106, 107, 116,
                                    108, 109, 110, 111, 112, 113, 114, 115};
  unwind::Registers found;
  REQUIRE(from_perf(values, found));
  for (unsigned number = 0; number < unwind::x86_64.count; ++number) CHECK(found.get(number) == 100 + number);
  for (const std::size_t callee_saved : {1U, 6U, 13U, 14U, 15U, 16U}) values[callee_saved] = ~0ULL;
  REQUIRE(from_perf(values, found));
  CHECK_FALSE(found.has(6));
  CHECK(found.get(7) == 107);
  values.pop_back();
  CHECK_FALSE(from_perf(values, found));
}

#endif

TEST_CASE("what a kernel lacks is told from fields that it has renamed, and from other failures") {
  CHECK(status_of_load(EINVAL).state == RungState::absent);
  CHECK(status_of_load(EACCES).state == RungState::failed);  // the verifier's word, not that of rights
  CHECK(status_of_missing(false, "alarms").state == RungState::absent);
  CHECK(status_of_missing(true, "alarms").state == RungState::failed);
  CHECK(status_of_missing(true, "alarms").reason ==
        "this kernel keeps alarms in fields that are not known here");
}
