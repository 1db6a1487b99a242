#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "unwind/machine_code.hpp"

namespace hangtrace::unwind::x86_64_decoder {

/// What an instruction does to the way on and to the stack pointer.
struct Effect {
  enum class Kind {
    plain,
    call,
    jump,              // to `target`
    conditional_jump,  // to `target`
    pointer_jump,      // to where the pointer at `target` leads
    computed_jump,
    leaves,   // returns, or cannot be passed
    down,     // the stack pointer, by `amount`
    up,       // by `amount`
    restores  // the stack pointer, from the frame pointer
  };
  Kind kind = Kind::plain;
  std::size_t length = 0;  // 0: not known
  Address target = 0;
  std::uint64_t amount = 0;
  bool moves_by_register = false;  // the stack pointer, by what is not in the code
  bool sets_top = false;           // writes the word that the stack pointer points to, perhaps a new one
};

/// The instruction at the begin of the code, which lies at `at`.
Effect effect_of(Code code, Address at);

/// How many bytes were pushed for the call that ends at `pc`, an offset in the code of a function behind its
/// prologue; nullopt if that is not certain: every call must give back right behind it what was pushed for
/// it, and nothing else may move the stack pointer.
std::optional<std::uint64_t> pushed_for_call(Code body, std::size_t pc);

/// All jumps of a function at `at`, among them that into what lies behind it; false if some instruction is
/// not known.
bool find_exits(Code function, Address at, std::vector<Jump>& into);

}  // namespace hangtrace::unwind::x86_64_decoder
