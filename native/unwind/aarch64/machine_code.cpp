// Calls, jumps, stubs and signal frames of aarch64 (Arm Architecture Reference Manual, C6.2).
#include "unwind/machine_code.hpp"

#include <cstring>

#include "unwind/aarch64/instructions.hpp"
#include "unwind/aarch64/prologue.hpp"

namespace hangtrace::unwind {

namespace {

using namespace aarch64_decoder;

// adrp xN, page; ldr xM, [xN, offset], at `at`: where the pointer lies that is loaded into xM.
std::optional<Address> loaded_pointer(Code code, Address at, unsigned* into) {
  const auto page = as_adrp(word_at(code, 0), at);
  const auto load = as_load(word_at(code, 4));
  if (!page || !load || load->base != page->target_register) return std::nullopt;
  if (into != nullptr) *into = load->target;
  return page->page + load->offset;
}

class Arm final : public MachineCode {
 public:
  Arm() : MachineCode(12, 4) {}

  CallInstruction call_ending_at(Code before, Address next) const override {
    CallInstruction call;
    if (before.size() < 4) return call;
    const std::uint32_t word = word_at(before, before.size() - 4);
    if (is_bl(word)) call.direct = branch_target(word, next - 4);
    call.indirect = is_blr(word);
    unsigned target = 0;
    if (call.indirect && before.size() == 12) {  // -fno-plt
      const auto slot = loaded_pointer(before, next - 12, &target);
      if (slot && target == (word >> 5 & 31)) call.slot = slot;
    }
    return call;
  }

  // [bti c;] adrp x16, page; ldr x17, [x16, offset]; add x16, x16, offset; [autia1716;] br x17
  std::optional<Address> stub_slot(Code code, Address at) const override {
    if (is_bti(word_at(code, 0))) {
      code = code.subspan(4);
      at += 4;
    }
    unsigned target = 0;
    const auto slot = loaded_pointer(code, at, &target);
    if (!slot || target != 17) return std::nullopt;
    for (const std::size_t end : {8u, 12u, 16u}) {
      const std::uint32_t word = word_at(code, end);
      if (is_br(word)) return (word >> 5 & 31) == target ? slot : std::nullopt;
    }
    return std::nullopt;
  }

  bool find_jumps(Code code, Address address, std::vector<Jump>& into) const override {
    bool goes_on = true;
    for (std::size_t at = 0; at + 4 <= code.size(); at += 4) {
      const std::uint32_t word = word_at(code, at);
      if (is_b(word)) {
        into.push_back({Jump::Kind::always, branch_target(word, address + at), address + at});
      } else if (const auto target = conditional_target(word, address + at)) {
        into.push_back({Jump::Kind::conditional, *target, address + at});
      } else if (is_br(word)) {
        into.push_back({Jump::Kind::computed, address + at, address + at});
      }
      goes_on = !is_b(word) && !is_br(word) && !is_ret(word) && !is_bl(word) && !is_blr(word);
    }
    if (goes_on) into.push_back({Jump::Kind::conditional, address + code.size(), address + code.size()});
    return true;
  }

  Prologue read_prologue(Code before, bool whole, Code) const override {
    return aarch64_decoder::read_prologue(before, whole);
  }

  // mov x8, #139; svc #0: kernel, arch/arm64/kernel/vdso/sigreturn.S, which keeps it so for unwinders.
  // Where the return address lies does not tell where the frame ends.
  EntryPath read_entry(Code, Code) const override { return {}; }

  // svc 0
  bool ends_in_system_call(Code code) const override {
    return code.size() >= 4 && word_at(code, code.size() - 4) == 0xd4000001;
  }

  bool is_signal_trampoline(Code code) const override {
    return word_at(code, 0) == 0xd2801168 && word_at(code, 4) == 0xd4000001;
  }

  // At the trampoline the stack pointer is at struct rt_sigframe (arch/arm64/kernel/signal.c): siginfo of 128
  // bytes, then struct ucontext, in which uc_mcontext is at 176 (asm/ucontext.h), and in it regs at 8, sp at
  // 256, pc at 264 (asm/sigcontext.h).
  std::optional<Registers> interrupted(const StackMemory& memory, Address sp) const override {
    constexpr Address saved = 128 + 176 + 8;
    constexpr unsigned count = 33;  // x0-x30, sp, pc: as DWARF counts them
    Registers registers(aarch64);
    for (unsigned number = 0; number < count; ++number) {
      const auto value = memory.word(sp + saved + Address{8} * number);
      if (!value) return std::nullopt;
      registers.set(number, *value);
    }
    return registers;
  }

  // ldp x29, x30, [sp], constant; ret.
  std::optional<Registers> straight_return(Code code, const Registers& registers,
                                           const StackMemory& memory) const override {
    const std::uint32_t load = word_at(code, 0);
    if ((load & 0xffc07fff) != 0xa8c07bfd || word_at(code, 4) != 0xd65f03c0) return std::nullopt;
    const Address frame = Address{load >> 15 & 0x7f} * 8;
    const auto sp = registers.get(aarch64.stack_pointer);
    if (!sp || frame < 16 || frame >= 64 * 8) return std::nullopt;  // the constant has a sign
    const auto frame_pointer = memory.word(*sp);
    const auto return_address = memory.word(*sp + 8);
    if (!frame_pointer || !return_address) return std::nullopt;
    Registers after = registers;
    after.forget_all(aarch64.caller_saved);
    after.set(aarch64.frame_pointer, *frame_pointer);
    after.set(aarch64.program_counter, *return_address);
    after.set(aarch64.stack_pointer, *sp + frame);
    return after;
  }

  bool exits_with_result(Code after) const override { return is_bl(word_at(after, 0)); }

  // The first argument of __libc_start_main (glibc, sysdeps/aarch64/start.S):
  // adrp x0, page; add x0, x0, offset, or ldr x0, [x0, offset]; ...; bl.
  CallInstruction main_function(Code start, Address at) const override {
    CallInstruction result;
    for (std::size_t offset = 0; offset + 8 <= start.size(); offset += 4) {
      const std::uint32_t word = word_at(start, offset);
      const std::uint32_t next = word_at(start, offset + 4);
      if (is_bl(word) || is_blr(word)) return result;
      const auto page = as_adrp(word, at + offset);
      if (!page || page->target_register != 0) continue;
      const auto load = as_load(next);
      result = {};
      if ((next & 0xffc003ff) == 0x91000000) result.direct = page->page + (next >> 10 & 0xfff);
      if (load && load->base == 0 && load->target == 0) result.slot = page->page + load->offset;
    }
    return {};
  }
};

}  // namespace

const MachineCode& aarch64_code() {
  static const Arm code;
  return code;
}

}  // namespace hangtrace::unwind
