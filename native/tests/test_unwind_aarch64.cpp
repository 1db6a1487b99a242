// What is recognised in aarch64 code. The words are those which binutils' assembler makes of the comments.
#include <doctest/doctest.h>

#include "unwind/machine_code.hpp"

using namespace hangtrace;
using unwind::Jump;
using unwind::machine_code;

namespace {

const unwind::MachineCode& code() {
  return *machine_code(elf::Machine::aarch64);
}

std::vector<std::uint8_t> bytes(std::initializer_list<std::uint32_t> words) {
  std::vector<std::uint8_t> result;
  for (const std::uint32_t word : words) {
    for (unsigned shift = 0; shift < 32; shift += 8)
      result.push_back(static_cast<std::uint8_t>(word >> shift));
  }
  return result;
}

unwind::CallInstruction call(std::initializer_list<std::uint32_t> words, memory::Address next) {
  return code().call_ending_at(bytes(words), next);
}

constexpr std::uint32_t nop = 0xd503201f;
constexpr std::uint32_t bl_self = 0x94000000;
constexpr std::uint32_t push_frame = 0xa9bd7bfd;      // stp x29, x30, [sp, #-48]!
constexpr std::uint32_t set_frame = 0x910003fd;       // mov x29, sp
constexpr std::uint32_t sub_0x40 = 0xd10103ff;        // sub sp, sp, #0x40
constexpr std::uint32_t set_frame_0x20 = 0x910083fd;  // add x29, sp, #0x20

unwind::Prologue prologue(std::initializer_list<std::uint32_t> words) {
  return code().read_prologue(bytes(words), true, {});
}

}  // namespace

TEST_CASE("machines without decoder have none") {
  CHECK(machine_code(elf::Machine::other) == nullptr);
}

TEST_CASE("calls") {
  CHECK(call({0x94000010}, 0x1004).direct == 0x1040);  // bl .+0x40
  CHECK(call({0x97fffff0}, 0x1004).direct == 0x0fc0);  // bl .-0x40
  CHECK(call({nop, nop, 0x94000010}, 0x1004).direct == 0x1040);
  for (const std::uint32_t word : {0xd63f0100u, 0xd63f091fu, 0xd73f0909u}) {  // blr, blraaz, blraa x8
    const auto indirect = call({word}, 0x1004);
    CHECK(indirect.indirect);
    CHECK_FALSE(indirect.direct);
    CHECK_FALSE(indirect.slot);
  }
  for (const std::uint32_t word :
       {0xd61f0220u, 0xd65f03c0u, 0x14000010u, nop, 0xd4000001u})  // br, ret, b, svc
    CHECK_FALSE(call({word}, 0x1004).any());
  // adrp x8, .; ldr x8, [x8, #8]; blr x8
  CHECK(call({0x90000008, 0xf9400508, 0xd63f0100}, 0x2ffc).slot == 0x2008);
  CHECK_FALSE(call({0x90000009, 0xf9400508, 0xd63f0100}, 0x2ffc).slot);
}

TEST_CASE("entries of the procedure linkage table") {
  // adrp x16; ldr x17, [x16, #24]; add x16, x16, #24; br x17
  CHECK(code().stub_slot(bytes({0x90000010, 0xf9400e11, 0x91006210, 0xd61f0220}), 0x5010) == 0x5018);
  // bti c before, autia1716 within
  CHECK(code().stub_slot(bytes({0xd503245f, 0x90000010, 0xf9400e11, 0x91006210, 0xd503219f, 0xd61f0220}),
                         0x4ffc) == 0x5018);
  CHECK_FALSE(code().stub_slot(bytes({0x90000010, 0xf9400e11, 0x91006210}), 0x5010));
  CHECK_FALSE(code().stub_slot(bytes({push_frame, set_frame, nop, 0xd61f0220}), 0x5010));
  CHECK_FALSE(code().stub_slot({}, 0x5010));
}

TEST_CASE("jumps") {
  std::vector<Jump> jumps;
  // b .-0x10; b.ne .+0x20; cbz x0, .+0x24; tbnz w3, #5, .-8; bl; ret
  code().find_jumps(bytes({0x17fffffc, 0x54000101, 0xb4000120, 0x372fffc3, bl_self, 0xd65f03c0}), 0x1000,
                    jumps);
  REQUIRE(jumps.size() == 4);
  CHECK(jumps[0].kind == Jump::Kind::always);
  CHECK(jumps[0].target == 0x0ff0);
  CHECK(jumps[1].kind == Jump::Kind::conditional);
  CHECK(jumps[1].target == 0x1024);
  CHECK(jumps[2].target == 0x102c);
  CHECK(jumps[3].target == 0x1004);
}

TEST_CASE("prologues") {
  const auto usual = prologue({0xd503233f, push_frame, set_frame, nop, bl_self});  // paciasp first
  CHECK(usual.sets_frame_pointer);
  CHECK(usual.exact);
  CHECK(usual.below == 0);
  // clang: sub sp, sp, #0x40; stp x29, x30, [sp, #32]; add x29, sp, #0x20
  const auto above = prologue({sub_0x40, 0xa9027bfd, set_frame_0x20, bl_self});
  CHECK(above.exact);
  CHECK(above.below == 0x20);
  // stp d8, d9, [sp, #-32]!; stp q8, q9, [sp, #-32]!; str x19, [sp, #-16]!; stp w0, w1, [sp, #-8]!
  const auto more =
      prologue({push_frame, set_frame, 0x6dbe27e8, 0xadbf27e8, 0xf81f0ff3, 0x29bf07e0, sub_0x40});
  CHECK(more.exact);
  CHECK(more.below == 32 + 32 + 16 + 8 + 0x40);
  // sub sp, sp, #1, lsl #12
  CHECK(prologue({push_frame, set_frame, 0xd14007ff}).below == 0x1000);
  // sub sp, sp, x0; mov sp, x20; and sp, x9, #-64
  for (const std::uint32_t word : {0xcb2063ffu, 0x9100029fu, 0x927ae53fu}) {
    const auto variable = prologue({push_frame, set_frame, word, bl_self});
    CHECK(variable.sets_frame_pointer);
    CHECK(variable.dynamic);
    CHECK_FALSE(variable.exact);
  }
  // The ways out change nothing: ldp x29, x30, [sp], #48; mov sp, x29; sub sp, x29, #0x10; add sp, sp, #0x40
  const auto early = prologue({push_frame, set_frame, 0xb4000120, 0x910003bf, 0xd10043bf, 0x910103ff,
                               0xa8c37bfd, 0xd65f03c0, bl_self});
  CHECK(early.exact);
  CHECK(early.below == 0);
  CHECK(prologue({push_frame, set_frame, bl_self, sub_0x40, bl_self}).dynamic);  // in the middle of the code
  CHECK_FALSE(prologue({push_frame, nop, bl_self}).sets_frame_pointer);
  CHECK_FALSE(code().read_prologue(bytes({push_frame, set_frame}), false, {}).exact);
}

TEST_CASE("signal trampolines") {
  CHECK(code().is_signal_trampoline(bytes({0xd2801168, 0xd4000001})));
  CHECK_FALSE(code().is_signal_trampoline(bytes({0xd2801168, nop})));
  CHECK_FALSE(code().is_signal_trampoline(bytes({0xd2801168})));
}

TEST_CASE("what is in a register is lost by a call or kept, as the ABI says") {
  const unwind::Layout& layout = unwind::aarch64;
  for (unsigned number = 0; number < layout.count; ++number) {
    const bool kept = (number >= 19 && number <= 29) || number == layout.stack_pointer;
    CHECK((layout.caller_saved >> number & 1) == (kept ? 0 : 1));
  }
}
