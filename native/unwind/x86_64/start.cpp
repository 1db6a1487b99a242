// How glibc calls the function that a thread was started with, and how it learns of main.
#include "unwind/x86_64/start.hpp"

#include <algorithm>
#include <cstring>

#include "unwind/x86_64/sweep.hpp"

namespace hangtrace::unwind::x86_64_decoder {

namespace {

std::int32_t field(Code code, std::size_t at) {
  std::int32_t value = 0;
  if (at + sizeof value <= code.size()) std::memcpy(&value, code.data() + at, sizeof value);
  return value;
}

bool begins(Code code, std::initializer_list<std::uint8_t> bytes) {
  return code.size() >= bytes.size() && std::equal(bytes.begin(), bytes.end(), code.begin());
}

constexpr std::int32_t largest_descriptor = 1 << 14;
constexpr std::size_t pointer_size = 8;

bool is_field(std::int32_t offset) {
  return offset > 0 && offset < largest_descriptor && offset % pointer_size == 0;
}

}  // namespace

std::optional<Address> start_field(Code before) {
  const auto known = [&](std::size_t at) -> std::optional<Address> {
    const std::int32_t offset = field(before, at);
    return is_field(offset) ? std::optional<Address>(offset) : std::nullopt;
  };
  const std::size_t size = before.size();
  if (size < 14) return std::nullopt;
  // call fs:[field]
  if (begins(before.last(8), {0x64, 0xff, 0x14, 0x25})) return known(size - 4);
  // call [base + field]
  const std::uint8_t operand = before[size - 5];
  if (before[size - 6] == 0xff && (operand & 0xf8) == 0x90 && operand != 0x94) return known(size - 4);
  // mov rax, [base + field]; mov rdi, [base + field + 8]; call rax, the first two in any order
  if (!begins(before.last(2), {0xff, 0xd0})) return std::nullopt;
  for (std::size_t at = 0; at + 9 <= size; ++at) {
    const bool loads = (before[at] & 0xfe) == 0x48 && before[at + 1] == 0x8b &&
                       (before[at + 2] & 0xf8) == 0x80 && before[at + 2] != 0x84;
    if (loads) return known(at + 3);
  }
  return std::nullopt;
}

CallInstruction main_function(Code start, Address at) {
  CallInstruction result;
  for (std::size_t offset = 0; offset < start.size();) {
    const Code code = start.subspan(offset);
    const Effect effect = effect_of(code, at + offset);
    if (effect.length == 0) return {};
    if (effect.kind == Effect::Kind::call) return result;
    offset += effect.length;
    const Address next = at + offset;
    if (begins(code, {0x48, 0x8d, 0x3d})) {  // lea rdi, [rip + main]
      result = {};
      result.direct = next + static_cast<Address>(std::int64_t{field(code, 3)});
    } else if (begins(code, {0x48, 0x8b, 0x3d})) {  // mov rdi, [rip + slot of main]
      result = {};
      result.slot = next + static_cast<Address>(std::int64_t{field(code, 3)});
    } else if (begins(code, {0x48, 0xc7, 0xc7})) {  // mov rdi, main
      result = {};
      result.direct = static_cast<Address>(std::int64_t{field(code, 3)});
    }
  }
  return {};
}

}  // namespace hangtrace::unwind::x86_64_decoder
