#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "unwind/registers.hpp"
#include "unwind/stack_memory.hpp"

namespace hangtrace::unwind {

enum class ExpressionProblem { none, unknown_register, unreadable, broken };

struct ExpressionResult {
  std::uint64_t value = 0;
  ExpressionProblem problem = ExpressionProblem::none;
};

/// Runs a DWARF expression of the call frame information (DWARF 5, 2.5.1 and 6.4.2). `initial` is pushed
/// first; `bias` is that of the module the expression is from. Bounded in stack and steps; an expression with
/// a loop ends as broken.
ExpressionResult run_expression(std::span<const std::byte> expression, const Registers& registers,
                                const StackMemory& memory, std::optional<std::uint64_t> initial,
                                Address bias = 0);

}  // namespace hangtrace::unwind
