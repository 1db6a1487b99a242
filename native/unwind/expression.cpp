#include "unwind/expression.hpp"

#include <array>

#include "elf/cursor.hpp"

namespace hangtrace::unwind {

namespace {

constexpr std::size_t max_depth = 64;
constexpr int max_steps = 1000;

class Machine {
 public:
  Machine(std::span<const std::byte> expression, const Registers& registers, const StackMemory& memory,
          Address bias)
      : cursor_(expression), registers_(registers), memory_(memory), bias_(bias) {}

  void push(std::uint64_t value) {
    if (depth_ >= max_depth) return fail(ExpressionProblem::broken);
    stack_[depth_++] = value;
  }

  ExpressionResult run() {
    for (int steps = 0; !cursor_.at_end() && problem_ == ExpressionProblem::none; ++steps) {
      if (steps >= max_steps) fail(ExpressionProblem::broken);
      step(cursor_.value<std::uint8_t>());
      if (!cursor_.ok()) fail(ExpressionProblem::broken);
    }
    const std::uint64_t value = pop();
    return {value, problem_};
  }

 private:
  void fail(ExpressionProblem problem) {
    if (problem_ == ExpressionProblem::none) problem_ = problem;
  }

  std::uint64_t pop() {
    if (depth_ == 0) {
      fail(ExpressionProblem::broken);
      return 0;
    }
    return stack_[--depth_];
  }

  std::uint64_t pick(std::size_t below_top) {
    if (below_top >= depth_) {
      fail(ExpressionProblem::broken);
      return 0;
    }
    return stack_[depth_ - 1 - below_top];
  }

  template <class T>
  void push_signed() {
    push(static_cast<std::uint64_t>(std::int64_t{cursor_.value<T>()}));
  }

  void push_register(std::uint64_t number, std::uint64_t offset) {
    const auto value = number < max_registers ? registers_.get(static_cast<unsigned>(number)) : std::nullopt;
    if (!value) return fail(ExpressionProblem::unknown_register);
    push(*value + offset);
  }

  void push_memory(std::uint64_t address, unsigned size) {
    std::optional<std::uint64_t> value;
    switch (size) {
      case 1:
        value = memory_.value<std::uint8_t>(address);
        break;
      case 2:
        value = memory_.value<std::uint16_t>(address);
        break;
      case 4:
        value = memory_.value<std::uint32_t>(address);
        break;
      case 8:
        value = memory_.value<std::uint64_t>(address);
        break;
      default:
        return fail(ExpressionProblem::broken);
    }
    if (!value) return fail(ExpressionProblem::unreadable);
    push(*value);
  }

  template <class Operation>
  void binary(Operation operation) {
    const std::uint64_t right = pop();
    const std::uint64_t left = pop();
    push(operation(left, right));
  }

  template <class Operation>
  void compare(Operation operation) {
    binary([&](std::uint64_t left, std::uint64_t right) -> std::uint64_t {
      return operation(static_cast<std::int64_t>(left), static_cast<std::int64_t>(right)) ? 1 : 0;
    });
  }

  void jump(std::int64_t offset) {  // before the begin is far behind the end
    cursor_.seek(static_cast<std::uint64_t>(static_cast<std::int64_t>(cursor_.position()) + offset));
  }

  void divide() {
    const auto right = static_cast<std::int64_t>(pop());
    const auto left = static_cast<std::int64_t>(pop());
    if (right == 0) return fail(ExpressionProblem::broken);
    push(right == -1 ? std::uint64_t{0} - static_cast<std::uint64_t>(left)
                     : static_cast<std::uint64_t>(left / right));
  }

  void modulo() {
    const std::uint64_t right = pop();
    const std::uint64_t left = pop();
    if (right == 0) return fail(ExpressionProblem::broken);
    push(left % right);
  }

  static std::uint64_t arithmetic_shift(std::uint64_t left, std::uint64_t right) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(left) >> (right < 63 ? right : 63));
  }

  void step(std::uint8_t operation) {
    if (operation >= 0x30 && operation <= 0x4f) return push(operation - 0x30u);  // DW_OP_lit
    if (operation >= 0x70 && operation <= 0x8f) {                                // DW_OP_breg
      return push_register(operation - 0x70u, static_cast<std::uint64_t>(cursor_.sleb()));
    }
    switch (operation) {
      case 0x03:  // DW_OP_addr
        return push(cursor_.value<std::uint64_t>() + bias_);
      case 0x0e:  // DW_OP_const8u
      case 0x0f:  // DW_OP_const8s
        return push(cursor_.value<std::uint64_t>());
      case 0x06:  // DW_OP_deref
        return push_memory(pop(), 8);
      case 0x08:  // DW_OP_const1u
        return push(cursor_.value<std::uint8_t>());
      case 0x09:
        return push_signed<std::int8_t>();
      case 0x0a:
        return push(cursor_.value<std::uint16_t>());
      case 0x0b:
        return push_signed<std::int16_t>();
      case 0x0c:
        return push(cursor_.value<std::uint32_t>());
      case 0x0d:
        return push_signed<std::int32_t>();
      case 0x10:  // DW_OP_constu
        return push(cursor_.uleb());
      case 0x11:  // DW_OP_consts
        return push(static_cast<std::uint64_t>(cursor_.sleb()));
      case 0x12:  // DW_OP_dup
        return push(pick(0));
      case 0x13:  // DW_OP_drop
        pop();
        return;
      case 0x14:  // DW_OP_over
        return push(pick(1));
      case 0x15:  // DW_OP_pick
        return push(pick(cursor_.value<std::uint8_t>()));
      case 0x16: {  // DW_OP_swap
        const std::uint64_t top = pop();
        const std::uint64_t second = pop();
        push(top);
        return push(second);
      }
      case 0x17: {  // DW_OP_rot
        const std::uint64_t top = pop();
        const std::uint64_t second = pop();
        const std::uint64_t third = pop();
        push(top);
        push(third);
        return push(second);
      }
      case 0x19: {  // DW_OP_abs
        const std::uint64_t value = pop();
        return push(value >> 63 != 0 ? std::uint64_t{0} - value : value);
      }
      case 0x1a:  // DW_OP_and
        return binary([](auto left, auto right) { return left & right; });
      case 0x1b:
        return divide();
      case 0x1c:  // DW_OP_minus
        return binary([](auto left, auto right) { return left - right; });
      case 0x1d:
        return modulo();
      case 0x1e:  // DW_OP_mul
        return binary([](auto left, auto right) { return left * right; });
      case 0x1f:  // DW_OP_neg
        return push(std::uint64_t{0} - pop());
      case 0x20:  // DW_OP_not
        return push(~pop());
      case 0x21:  // DW_OP_or
        return binary([](auto left, auto right) { return left | right; });
      case 0x22:  // DW_OP_plus
        return binary([](auto left, auto right) { return left + right; });
      case 0x23:  // DW_OP_plus_uconst
        return push(pop() + cursor_.uleb());
      case 0x24:  // DW_OP_shl
        return binary([](auto left, auto right) { return right < 64 ? left << right : 0; });
      case 0x25:  // DW_OP_shr
        return binary([](auto left, auto right) { return right < 64 ? left >> right : 0; });
      case 0x26:
        return binary(arithmetic_shift);
      case 0x27:  // DW_OP_xor
        return binary([](auto left, auto right) { return left ^ right; });
      case 0x28: {  // DW_OP_bra
        const auto offset = cursor_.value<std::int16_t>();
        if (pop() != 0) jump(offset);
        return;
      }
      case 0x29:  // DW_OP_eq
        return compare([](auto left, auto right) { return left == right; });
      case 0x2a:
        return compare([](auto left, auto right) { return left >= right; });
      case 0x2b:
        return compare([](auto left, auto right) { return left > right; });
      case 0x2c:
        return compare([](auto left, auto right) { return left <= right; });
      case 0x2d:
        return compare([](auto left, auto right) { return left < right; });
      case 0x2e:
        return compare([](auto left, auto right) { return left != right; });
      case 0x2f:  // DW_OP_skip
        return jump(cursor_.value<std::int16_t>());
      case 0x92: {  // DW_OP_bregx
        const std::uint64_t number = cursor_.uleb();
        return push_register(number, static_cast<std::uint64_t>(cursor_.sleb()));
      }
      case 0x94: {  // DW_OP_deref_size
        const auto size = cursor_.value<std::uint8_t>();
        return push_memory(pop(), size);
      }
      case 0x96:  // DW_OP_nop
        return;
      default:
        return fail(ExpressionProblem::broken);
    }
  }

  elf::Cursor cursor_;
  const Registers& registers_;
  const StackMemory& memory_;
  Address bias_;
  std::array<std::uint64_t, max_depth> stack_{};
  std::size_t depth_ = 0;
  ExpressionProblem problem_ = ExpressionProblem::none;
};

}  // namespace

ExpressionResult run_expression(std::span<const std::byte> expression, const Registers& registers,
                                const StackMemory& memory, std::optional<std::uint64_t> initial,
                                Address bias) {
  Machine machine(expression, registers, memory, bias);
  if (initial) machine.push(*initial);
  return machine.run();
}

}  // namespace hangtrace::unwind
