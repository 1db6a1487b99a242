// Calls, jumps, stubs and signal frames of x86-64 (Intel SDM, volume 2).
#include "unwind/machine_code.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "unwind/x86_64/entry.hpp"
#include "unwind/x86_64/prologue.hpp"
#include "unwind/x86_64/start.hpp"
#include "unwind/x86_64/sweep.hpp"

namespace hangtrace::unwind {

namespace {

Address relative(Address next, const std::uint8_t* field) {
  std::int32_t offset;
  std::memcpy(&offset, field, sizeof offset);
  return next + static_cast<Address>(std::int64_t{offset});
}

// Length of `ff /2` with its operand (Intel SDM, volume 2, tables 2-2 and 2-3), 0 if it is another
// instruction.
std::size_t indirect_call_length(Code code) {
  std::size_t at = 0;
  if (at < code.size() && (code[at] & 0xf0) == 0x40) ++at;  // REX
  if (at + 2 > code.size() || code[at] != 0xff || (code[at + 1] >> 3 & 7) != 2) return 0;
  const unsigned mode = code[at + 1] >> 6;
  const unsigned rm = code[at + 1] & 7;
  std::size_t length = at + 2;
  if (mode == 3) return length;
  if (rm == 4) {
    if (length >= code.size()) return 0;
    if (mode == 0 && (code[length] & 7) == 5) length += 4;
    ++length;
  }
  if (mode == 1) length += 1;
  if (mode == 2 || (mode == 0 && rm == 5)) length += 4;
  return length;
}

class X86 final : public MachineCode {
 public:
  static constexpr std::size_t call_size = 7;
  X86() : MachineCode(call_size, call_size) {}

  CallInstruction call_ending_at(Code before, Address next) const override {
    CallInstruction call;
    if (before.size() != call_size) return call;
    if (before[2] == 0xe8) call.direct = relative(next, &before[3]);
    if (before[1] == 0xff && before[2] == 0x15)
      call.slot = relative(next, &before[3]);  // call [rip + disp32]
    for (std::size_t length = 2; length <= call_size; ++length) {
      if (indirect_call_length(before.last(length)) == length && !(length == 6 && call.slot))
        call.indirect = true;
    }
    return call;
  }

  // jmp [rip + disp32], with endbr64 (-fcf-protection) and bnd (MPX, IBT) prefixes.
  std::optional<Address> stub_slot(Code code, Address address) const override {
    constexpr std::array<std::uint8_t, 4> endbr64{0xf3, 0x0f, 0x1e, 0xfa};
    std::size_t at = 0;
    if (code.size() >= endbr64.size() && std::equal(endbr64.begin(), endbr64.end(), code.begin()))
      at += endbr64.size();
    if (at < code.size() && code[at] == 0xf2) ++at;
    if (at + 6 > code.size() || code[at] != 0xff || code[at + 1] != 0x25) return std::nullopt;
    return relative(address + at + 6, &code[at + 2]);
  }

  bool find_jumps(Code function, Address at, std::vector<Jump>& into) const override {
    return x86_64_decoder::find_exits(function, at, into);
  }

  Prologue read_prologue(Code before, bool whole, Code after) const override {
    return x86_64_decoder::read_prologue(before, whole, after);
  }

  EntryPath read_entry(Code before, Code after) const override {
    return x86_64_decoder::read_entry(before, after);
  }

  // Not int 0x80, whose arguments are in other registers.
  bool ends_in_system_call(Code code) const override {
    return code.size() >= 2 && code[code.size() - 2] == 0x0f && code.back() == 0x05;
  }

  bool is_signal_trampoline(Code code) const override {
    constexpr std::array<std::uint8_t, 9> trampoline{0x48, 0xc7, 0xc0, 0x0f, 0,
                                                     0,    0,    0x0f, 0x05};  // rt_sigreturn
    return code.size() >= trampoline.size() && std::equal(trampoline.begin(), trampoline.end(), code.begin());
  }

  // At the trampoline the stack pointer is at struct ucontext; offsets are those of uc_mcontext.gregs
  // (asm/sigcontext.h).
  std::optional<Registers> interrupted(const StackMemory& memory, Address sp) const override {
    constexpr std::array<std::pair<unsigned, Address>, 17> saved{{{8, 40},
                                                                  {9, 48},
                                                                  {10, 56},
                                                                  {11, 64},
                                                                  {12, 72},
                                                                  {13, 80},
                                                                  {14, 88},
                                                                  {15, 96},
                                                                  {5, 104},
                                                                  {4, 112},
                                                                  {6, 120},
                                                                  {3, 128},
                                                                  {1, 136},
                                                                  {0, 144},
                                                                  {2, 152},
                                                                  {7, 160},
                                                                  {16, 168}}};
    Registers registers(x86_64);
    for (const auto& [number, offset] : saved) {
      const auto value = memory.word(sp + offset);
      if (!value) return std::nullopt;
      registers.set(number, *value);
    }
    return registers;
  }

  // add rsp, constant; pop; leave; ret.
  std::optional<Registers> straight_return(Code code, const Registers& registers,
                                           const StackMemory& memory) const override {
    // Numbers of instructions' registers -> of DWARF.
    constexpr std::array<unsigned, 16> dwarf{0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15};
    constexpr unsigned stack_pointer = 7;
    constexpr unsigned frame_pointer = 6;
    Registers after = registers;
    auto sp = after.get(stack_pointer);
    const auto pop = [&](unsigned number) {
      const auto word = memory.word(*sp);
      if (!word || number == stack_pointer) return false;
      after.set(number, *word);
      *sp += sizeof(Address);
      return true;
    };
    std::size_t at = 0;
    const auto left = [&](std::size_t bytes) { return code.size() - at >= bytes; };
    while (sp && left(1)) {
      const std::uint8_t first = code[at];
      if (left(2) && first == 0xf3 && code[at + 1] == 0xc3) ++at;  // rep ret
      if (code[at] == 0xc3) {
        if (!pop(after.layout().program_counter)) return std::nullopt;
        after.forget_all(after.layout().caller_saved);
        after.set(stack_pointer, *sp);
        return after;
      }
      if (left(4) && first == 0x48 && code[at + 1] == 0x83 && code[at + 2] == 0xc4 && code[at + 3] < 0x80) {
        *sp += code[at + 3];
        at += 4;
      } else if (left(7) && first == 0x48 && code[at + 1] == 0x81 && code[at + 2] == 0xc4 &&
                 code[at + 6] < 0x80) {
        *sp = relative(*sp, &code[at + 3]);
        at += 7;
      } else if ((first & 0xf8) == 0x58) {
        if (!pop(dwarf[first & 7])) return std::nullopt;
        ++at;
      } else if (left(2) && first == 0x41 && (code[at + 1] & 0xf8) == 0x58) {
        if (!pop(dwarf[8 + (code[at + 1] & 7)])) return std::nullopt;
        at += 2;
      } else if (first == 0xc9) {
        sp = after.get(frame_pointer);
        if (!sp || !pop(frame_pointer)) return std::nullopt;
        ++at;
      } else {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  std::optional<Address> start_field(Code before) const override {
    return x86_64_decoder::start_field(before);
  }

  // tcbhead_t (glibc, sysdeps/x86_64/nptl/tls.h): tcb at 0 and self at 16 are its own address.
  bool is_thread_descriptor(const StackMemory& memory, Address at) const override {
    return memory.word(at) == at && memory.word(at + 16) == at;
  }

  bool exits_with_result(Code after) const override {  // mov edi, eax; call
    constexpr std::array<std::uint8_t, 3> exit{0x89, 0xc7, 0xe8};
    return after.size() >= exit.size() && std::equal(exit.begin(), exit.end(), after.begin());
  }

  CallInstruction main_function(Code start, Address at) const override {
    return x86_64_decoder::main_function(start, at);
  }
};

}  // namespace

const MachineCode& x86_64_code() {
  static const X86 code;
  return code;
}

}  // namespace hangtrace::unwind
