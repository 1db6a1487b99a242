#include <doctest/doctest.h>

#include "memory/buffer_reader.hpp"
#include "tests/elf_builder.hpp"
#include "unwind/expression.hpp"

using namespace hangtrace;
using namespace hangtrace::tests;
using unwind::ExpressionProblem;

namespace {

constexpr memory::Address stack = 0x7fff0000;

struct Setup {
  memory::BufferReader reader;
  std::vector<proc::Mapping> mappings;
  unwind::Registers registers;

  Setup() {
    reader.add_value(stack, std::uint64_t{0x1122334455667788});
    registers.set(7, stack);
    registers.set(16, 0x401013);
  }
  unwind::ExpressionResult run(std::initializer_list<unsigned> expression,
                               std::optional<std::uint64_t> initial = std::nullopt) const {
    const unwind::StackMemory memory(0, {}, reader, mappings);
    return unwind::run_expression(bytes_of(expression), registers, memory, initial);
  }
};

}  // namespace

TEST_CASE("arithmetic of expressions") {
  const Setup setup;
  CHECK(setup.run({0x35, 0x33, 0x1c}).value == 2);                        // 5 - 3
  CHECK(setup.run({0x33, 0x35, 0x1c}).value == std::uint64_t(-2));        // 3 - 5
  CHECK(setup.run({0x09, 0xfc, 0x32, 0x1b}).value == std::uint64_t(-2));  // -4 / 2
  CHECK(setup.run({0x09, 0xfc, 0x31, 0x26}).value == std::uint64_t(-2));  // -4 >> 1, arithmetic
  CHECK(setup.run({0x31, 0x08, 200, 0x24}).value == 0);                   // 1 << 200
  CHECK(setup.run({0x31, 0x32, 0x33, 0x17}).value == 2);                  // rot
  CHECK(setup.run({0x31, 0x32, 0x16}).value == 1);                        // swap
  CHECK(setup.run({0x31, 0x32, 0x14}).value == 1);                        // over
  CHECK(setup.run({0x31, 0x32, 0x33, 0x15, 2}).value == 1);               // pick
  CHECK(setup.run({0x09, 0xff, 0x31, 0x2d}).value == 1);                  // -1 < 1
  CHECK(setup.run({0x09, 0x80, 0x19}).value == 128);                      // abs
  CHECK(setup.run({0x23, 0x88, 0x01}, 8).value == 144);                   // initial value plus 136
  CHECK(setup.run({0x31, 0x28, 1, 0, 0x32, 0x33}).value == 3);            // bra over a literal
}

TEST_CASE("every operator") {
  const Setup setup;
  const auto value = [&](std::initializer_list<unsigned> expression) {
    const auto result = setup.run(expression);
    CHECK(result.problem == ExpressionProblem::none);
    return static_cast<std::int64_t>(result.value);
  };
  CHECK(value({0x4f}) == 31);                                                      // lit31
  CHECK(value({0x08, 0xff}) == 255);                                               // const1u
  CHECK(value({0x09, 0xff}) == -1);                                                // const1s
  CHECK(value({0x0a, 0xfe, 0xff}) == 0xfffe);                                      // const2u
  CHECK(value({0x0b, 0xfe, 0xff}) == -2);                                          // const2s
  CHECK(value({0x0c, 0xfe, 0xff, 0xff, 0xff}) == 0xfffffffe);                      // const4u
  CHECK(value({0x0d, 0xfe, 0xff, 0xff, 0xff}) == -2);                              // const4s
  CHECK(value({0x0e, 1, 0, 0, 0, 0, 0, 0, 0x80}) == INT64_MIN + 1);                // const8u
  CHECK(value({0x0f, 0xfe, 255, 255, 255, 255, 255, 255, 255}) == -2);             // const8s
  CHECK(value({0x10, 0x80, 0x01}) == 128);                                         // constu
  CHECK(value({0x11, 0x7f}) == -1);                                                // consts
  CHECK(value({0x35, 0x12, 0x1e}) == 25);                                          // dup, mul
  CHECK(value({0x35, 0x36, 0x13}) == 5);                                           // drop
  CHECK(value({0x37, 0x33, 0x1d}) == 1);                                           // mod
  CHECK(value({0x3c, 0x3a, 0x1a}) == 8);                                           // and
  CHECK(value({0x3c, 0x33, 0x21}) == 15);                                          // or
  CHECK(value({0x3c, 0x3a, 0x27}) == 6);                                           // xor
  CHECK(value({0x31, 0x1f}) == -1);                                                // neg
  CHECK(value({0x30, 0x20}) == -1);                                                // not
  CHECK(value({0x31, 0x34, 0x24}) == 16);                                          // shl
  CHECK(value({0x09, 0xff, 0x08, 60, 0x25}) == 15);                                // shr
  CHECK(value({0x09, 0xf0, 0x08, 200, 0x26}) == -1);                               // shra past the width
  CHECK(value({0x35, 0x35, 0x29}) == 1);                                           // eq
  CHECK(value({0x35, 0x36, 0x2a}) == 0);                                           // ge
  CHECK(value({0x36, 0x35, 0x2b}) == 1);                                           // gt
  CHECK(value({0x35, 0x35, 0x2c}) == 1);                                           // le
  CHECK(value({0x35, 0x36, 0x2e}) == 1);                                           // ne
  CHECK(value({0x2f, 1, 0, 0x31, 0x96, 0x32}) == 2);                               // skip, nop
  CHECK(value({0x0f, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x09, 0xff, 0x1b}) == INT64_MIN);  // INT64_MIN / -1
}

TEST_CASE("an address in an expression is one of the file") {
  const Setup setup;
  const unwind::StackMemory memory(0, {}, setup.reader, setup.mappings);
  const Bytes expression = bytes_of({0x03, 0, 0x10, 0, 0, 0, 0, 0, 0});
  CHECK(unwind::run_expression(expression, setup.registers, memory, std::nullopt, 0x7f0000000000).value ==
        0x7f0000001000);
}

TEST_CASE("registers and memory") {
  const Setup setup;
  CHECK(setup.run({0x77, 8}).value == stack + 8);
  CHECK(setup.run({0x77, 0, 0x06}).value == 0x1122334455667788);
  CHECK(setup.run({0x77, 0, 0x94, 2}).value == 0x7788);
  CHECK(setup.run({0x92, 7, 0x7f}).value == stack - 1);
  CHECK(setup.run({0x76, 0}).problem == ExpressionProblem::unknown_register);  // rbp was not given
  CHECK(setup.run({0x77, 16, 0x06}).problem == ExpressionProblem::unreadable);
}

TEST_CASE("the expression which linkers write for the PLT") {
  // rsp + 8 + ((rip & 15) >= 11 ? 8 : 0)
  Setup setup;
  const std::initializer_list<unsigned> plt{0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22};
  CHECK(setup.run(plt).value == stack + 8);
  setup.registers.set(16, 0x40101b);
  CHECK(setup.run(plt).value == stack + 16);
}

TEST_CASE("broken expressions end with a reason") {
  const Setup setup;
  CHECK(setup.run({}).problem == ExpressionProblem::broken);
  CHECK(setup.run({0x22}).problem == ExpressionProblem::broken);
  CHECK(setup.run({0x0e, 1, 2}).problem == ExpressionProblem::broken);
  CHECK(setup.run({0x31, 0x30, 0x1b}).problem == ExpressionProblem::broken);              // division by zero
  CHECK(setup.run({0x31, 0x94, 3}).problem == ExpressionProblem::broken);                 // size 3
  CHECK(setup.run({0x31, 0x2f, 0xfc, 0xff}).problem == ExpressionProblem::broken);        // endless loop
  CHECK(setup.run({0x31, 0x2f, 0x00, 0x7f}).problem == ExpressionProblem::broken);        // jump out
  CHECK(setup.run({0x31, 0x12, 0x2f, 0xfc, 0xff}).problem == ExpressionProblem::broken);  // grows for ever
  CHECK(setup.run({0xe0}).problem == ExpressionProblem::broken);
}
