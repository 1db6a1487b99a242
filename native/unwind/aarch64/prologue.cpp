#include "unwind/aarch64/prologue.hpp"

#include "unwind/aarch64/instructions.hpp"

namespace hangtrace::unwind::aarch64_decoder {

namespace {

enum class Change {
  none,
  down,     // by a known amount
  up,       // the way out: back over locals, or to where the frame pointer says
  unknown,  // by a register, or an alignment
};

struct StackChange {
  Change change = Change::none;
  std::uint64_t amount = 0;
};

// add or sub (immediate), 64 bits
bool is_add(std::uint32_t word) {
  return (word & 0xff800000) == 0x91000000;
}
bool is_sub(std::uint32_t word) {
  return (word & 0xff800000) == 0xd1000000;
}
std::uint64_t immediate(std::uint32_t word) {
  return std::uint64_t{word >> 10 & 0xfff} << ((word >> 22 & 1) != 0 ? 12 : 0);
}

// What an instruction does to the stack pointer.
StackChange stack_change(std::uint32_t word) {
  const auto by = [](std::int64_t amount) {
    return amount < 0 ? StackChange{Change::down, static_cast<std::uint64_t>(-amount)}
                      : StackChange{Change::up, 0};
  };
  if (rd(word) == sp_register) {
    if (is_sub(word) && rn(word) == sp_register) return {Change::down, immediate(word)};
    if (is_add(word) && rn(word) == sp_register)
      return immediate(word) == 0 ? StackChange{} : StackChange{Change::up, 0};
    if ((is_add(word) || is_sub(word)) && rn(word) == fp_register) return {Change::up, 0};
    // Any other add or sub, and `and` with a constant, which aligns; register 31 is sp in these forms.
    const bool by_register = (word & 0xbfe00000) == 0x8b200000;  // add, sub (extended register)
    const bool aligns = (word & 0xff800000) == 0x92000000;
    if (is_add(word) || is_sub(word) || by_register || aligns) return {Change::unknown, 0};
  }
  if (rn(word) == sp_register) {
    // Pairs with write-back: 8 bytes a unit for x and d, 4 for w and s, 16 for q registers.
    if ((word & 0x3a000000) == 0x28000000 && (word & 0x00800000) != 0) {
      const bool vector = (word & 0x04000000) != 0;
      const unsigned size = word >> 30;
      const std::int64_t unit = vector ? std::int64_t{4} << size : (size == 2 ? 8 : 4);
      return by(signed_field(word, 15, 7) * unit);
    }
    // One register, pre- or post-indexed.
    if ((word & 0x3b200400) == 0x38000400) return by(signed_field(word, 12, 9));
  }
  return {};
}

bool leaves(std::uint32_t word, Address at) {
  return is_b(word) || is_bl(word) || is_br(word) || is_blr(word) || is_ret(word) ||
         conditional_target(word, at).has_value();
}

}  // namespace

Prologue read_prologue(Code function, bool whole) {
  Prologue result;
  bool in_prologue = true;  // from the begin, or from where the frame pointer is set, up to the first branch
  for (std::size_t at = 0; at + 4 <= function.size(); at += 4) {
    const std::uint32_t word = word_at(function, at);
    if (is_add(word) && rd(word) == fp_register && rn(word) == sp_register) {
      // Set again elsewhere: two ways lead here, and which was taken is not known.
      if (result.sets_frame_pointer) result.dynamic = true;
      result.sets_frame_pointer = true;
      result.below = immediate(word);
      in_prologue = true;
      continue;
    }
    if (!result.sets_frame_pointer) continue;
    if (leaves(word, at)) in_prologue = false;
    const StackChange change = stack_change(word);
    if (change.change == Change::unknown || (change.change == Change::down && !in_prologue)) {
      result.dynamic = true;
    } else if (change.change == Change::down) {
      result.below += change.amount;
    }
  }
  if (!result.sets_frame_pointer) return {};
  result.exact = whole && !result.dynamic;
  return result;
}

}  // namespace hangtrace::unwind::aarch64_decoder
