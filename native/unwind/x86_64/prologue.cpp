#include "unwind/x86_64/prologue.hpp"

#include <algorithm>
#include <cstring>

namespace hangtrace::unwind::x86_64_decoder {

namespace {

constexpr std::size_t max_prologue = 256;

bool begins(Code code, std::initializer_list<std::uint8_t> bytes) {
  return code.size() >= bytes.size() && std::equal(bytes.begin(), bytes.end(), code.begin());
}

// Length of a mov, lea, test, cmp, xor, zero or sign extension, or SSE move: what compilers put between the
// pushes. 0 for anything else, and for anything that writes the stack or frame pointer.
std::size_t harmless_length(Code code) {
  std::size_t at = 0;
  while (at < code.size() && (code[at] == 0x66 || code[at] == 0xf3 || code[at] == 0xf2)) ++at;
  bool extends_reg = false;
  bool extends_rm = false;
  if (at < code.size() && (code[at] & 0xf0) == 0x40) {
    extends_reg = (code[at] & 4) != 0;
    extends_rm = (code[at] & 1) != 0;
    ++at;
  }
  if (at >= code.size()) return 0;
  std::uint8_t opcode = code[at++];
  std::size_t immediate = 0;
  bool writes_reg = false;
  bool writes_rm = false;
  if (opcode >= 0xb8 && opcode <= 0xbf) {  // mov r32, imm32
    if (!extends_rm && (opcode == 0xbc || opcode == 0xbd)) return 0;
    return at + 4 <= code.size() ? at + 4 : 0;
  }
  if (opcode == 0x0f) {
    if (at >= code.size()) return 0;
    opcode = code[at++];
    constexpr std::uint8_t known[] = {0x10, 0x11, 0x1f, 0x28, 0x29, 0x57, 0x6e, 0x6f, 0x7e, 0x7f,
                                      0x16, 0x12, 0x6c, 0xb6, 0xb7, 0xbe, 0xbf, 0xef, 0xd6};
    if (std::ranges::find(known, opcode) == std::end(known)) return 0;
    writes_reg = opcode >= 0xb6 && opcode <= 0xbf;
    writes_rm = opcode == 0x7e;
  } else {
    switch (opcode) {
      case 0x88:
      case 0x89:
      case 0x31:
        writes_rm = true;
        break;
      case 0x8a:
      case 0x8b:
      case 0x8d:
      case 0x33:
      case 0x63:
        writes_reg = true;
        break;
      case 0x84:
      case 0x85:
      case 0x39:
      case 0x3b:
        break;
      case 0xc6:
        immediate = 1;
        writes_rm = true;
        break;
      case 0xc7:
        immediate = 4;
        writes_rm = true;
        break;
      default:
        return 0;
    }
  }
  if (at >= code.size()) return 0;
  const unsigned mode = code[at] >> 6;
  const unsigned reg = code[at] >> 3 & 7;
  const unsigned rm = code[at] & 7;
  ++at;
  const auto is_stack = [](unsigned number) { return number == 4 || number == 5; };
  if (writes_reg && !extends_reg && is_stack(reg)) return 0;
  if (writes_rm && mode == 3 && !extends_rm && is_stack(rm)) return 0;
  if (mode != 3 && rm == 4) {
    if (at >= code.size()) return 0;
    if (mode == 0 && (code[at] & 7) == 5) at += 4;
    ++at;
  }
  if (mode == 1) at += 1;
  if (mode == 2 || (mode == 0 && rm == 5)) at += 4;
  at += immediate;
  return at <= code.size() ? at : 0;
}

std::uint32_t immediate32(Code code, std::size_t at) {
  std::uint32_t value = 0;
  if (at + 4 <= code.size()) std::memcpy(&value, code.data() + at, 4);
  return value;
}

// The ways back to the fixed part of the frame: lea rsp, [rbp + disp]; mov rsp, rbp; lea rsp, [r10 - 8].
bool is_epilogue(Code code) {
  return begins(code, {0x48, 0x8d, 0x65}) || begins(code, {0x48, 0x8d, 0xa5}) ||
         begins(code, {0x48, 0x89, 0xec}) || begins(code, {0x49, 0x8d, 0x62, 0xf8});
}

// Instructions that move the stack pointer by an amount which is not in the code (alloca, arrays of variable
// length), or that probe the pages of a large frame. A false hit only costs the exact way.
bool moves_by_register(Code code) {
  constexpr std::uint8_t to_rm[] = {0x01, 0x21, 0x29, 0x89};         // add, and, sub, mov rsp, reg
  constexpr std::uint8_t to_reg[] = {0x03, 0x23, 0x2b, 0x8b, 0x8d};  // add, and, sub, mov, lea rsp, ...
  for (std::size_t at = 0; at + 3 <= code.size(); ++at) {
    if ((code[at] & 0xf8) != 0x48 || is_epilogue(code.subspan(at))) continue;
    const bool rm_is_rsp = (code[at] & 1) == 0 && (code[at + 2] & 0xc7) == 0xc4;
    const bool reg_is_rsp = (code[at] & 4) == 0 && (code[at + 2] & 0x38) == 0x20;
    if (rm_is_rsp && std::ranges::find(to_rm, code[at + 1]) != std::end(to_rm)) return true;
    if (reg_is_rsp && std::ranges::find(to_reg, code[at + 1]) != std::end(to_reg)) return true;
    if (begins(code.subspan(at), {0x48, 0x83, 0x0c, 0x24, 0x00})) return true;  // or qword [rsp], 0
  }
  return false;
}

}  // namespace

Prologue read_prologue(Code function, bool whole) {
  Prologue result;
  Code code = function.first(std::min(function.size(), max_prologue));
  whole = whole && code.size() == function.size();
  while (!code.empty()) {
    std::size_t length = 0;
    if (begins(code, {0xf3, 0x0f, 0x1e, 0xfa})) {  // endbr64
      length = 4;
    } else if (begins(code, {0x48, 0x89, 0xe5}) || begins(code, {0x48, 0x8b, 0xec})) {  // mov rbp, rsp
      result.sets_frame_pointer = true;
      result.below = 0;
      result.alignment = 0;
      length = 3;
    } else if (code[0] >= 0x50 && code[0] <= 0x57) {  // push
      result.below += 8;
      length = 1;
    } else if (code.size() >= 2 && code[0] == 0x41 && code[1] >= 0x50 && code[1] <= 0x57) {
      result.below += 8;
      length = 2;
    } else if (begins(code, {0x41, 0xff, 0x72, 0xf8})) {  // push [r10 - 8]: copy of the return address
      result.below += 8;
      length = 4;
    } else if (code.size() >= 4 && begins(code, {0x48, 0x83, 0xe4})) {  // and rsp, imm8
      result.alignment =
          std::uint64_t{0} - static_cast<std::uint64_t>(std::int64_t{static_cast<std::int8_t>(code[3])});
      length = 4;
    } else if (code.size() >= 7 && begins(code, {0x48, 0x81, 0xe4})) {  // and rsp, imm32
      result.alignment =
          std::uint64_t{0} -
          static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(immediate32(code, 3))});
      length = 7;
    } else if (code.size() >= 4 && begins(code, {0x48, 0x83, 0xec})) {  // sub rsp, imm8
      result.below += code[3];
      length = 4;
      result.exact = result.sets_frame_pointer;
    } else if (code.size() >= 7 && begins(code, {0x48, 0x81, 0xec})) {  // sub rsp, imm32
      result.below += immediate32(code, 3);
      length = 7;
      result.exact = result.sets_frame_pointer;
    } else if (begins(code, {0x48, 0x83, 0xc4, 0x80})) {  // add rsp, -128
      result.below += 128;
      length = 4;
      result.exact = result.sets_frame_pointer;
    } else {
      length = harmless_length(code);
    }
    if (result.exact || length == 0 || length > code.size()) break;
    code = code.subspan(length);
  }
  if (!result.sets_frame_pointer) return Prologue{};
  if (whole && code.empty()) result.exact = true;
  if (result.alignment > 4096) result.alignment = 0;
  result.dynamic = moves_by_register(function);
  return result;
}

}  // namespace hangtrace::unwind::x86_64_decoder
