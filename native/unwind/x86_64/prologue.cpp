#include "unwind/x86_64/prologue.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "unwind/x86_64/sweep.hpp"

namespace hangtrace::unwind::x86_64_decoder {

namespace {

constexpr std::size_t max_prologue = 256;

bool begins(Code code, std::initializer_list<std::uint8_t> bytes) {
  return code.size() >= bytes.size() && std::equal(bytes.begin(), bytes.end(), code.begin());
}

std::uint32_t immediate32(Code code, std::size_t at) {
  std::uint32_t value = 0;
  if (at + 4 <= code.size()) std::memcpy(&value, code.data() + at, 4);
  return value;
}

}  // namespace

Prologue read_prologue(Code before, bool whole, Code after) {
  Prologue result;
  Code code = before.first(std::min(before.size(), max_prologue));
  bool copied_return_address = false;
  bool has_locals = false;
  while (!code.empty()) {
    std::size_t length = 0;
    if (begins(code, {0xf3, 0x0f, 0x1e, 0xfa})) {  // endbr64
      length = 4;
    } else if (begins(code, {0x48, 0x89, 0xe5}) || begins(code, {0x48, 0x8b, 0xec})) {  // mov rbp, rsp
      result.sets_frame_pointer = true;
      result.below = 0;
      if (copied_return_address) result.realigned = result.alignment;
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
      copied_return_address = true;
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
      has_locals = result.sets_frame_pointer;
    } else if (code.size() >= 7 && begins(code, {0x48, 0x81, 0xec})) {  // sub rsp, imm32
      result.below += immediate32(code, 3);
      length = 7;
      has_locals = result.sets_frame_pointer;
    } else if (begins(code, {0x48, 0x83, 0xc4, 0x80})) {  // add rsp, -128
      result.below += 128;
      length = 4;
      has_locals = result.sets_frame_pointer;
    } else {
      const Effect effect = effect_of(code, 0);
      if (effect.kind == Effect::Kind::plain && !effect.moves_by_register) length = effect.length;
    }
    if (length == 0 || length > code.size()) break;
    code = code.subspan(length);
    if (has_locals) break;
  }
  if (!result.sets_frame_pointer) return Prologue{};
  if (result.alignment > 4096 || result.realigned > 4096 || !whole) return result;
  const std::size_t read = std::min(before.size(), max_prologue) - code.size();
  std::vector<std::uint8_t> body(before.begin() + static_cast<std::ptrdiff_t>(read), before.end());
  body.insert(body.end(), after.begin(), after.end());
  const auto pushed = pushed_for_call(body, before.size() - read);
  result.exact = pushed.has_value();
  result.below += pushed.value_or(0);
  return result;
}

}  // namespace hangtrace::unwind::x86_64_decoder
