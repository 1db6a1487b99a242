// The way from a function's begin to a place in it, instruction by instruction (Intel SDM, volume 2). What is
// not known for sure ends the reading: nothing here may be a guess.
#include "unwind/x86_64/entry.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace hangtrace::unwind::x86_64_decoder {

namespace {

constexpr unsigned rsp = 4;  // numbers of instructions
constexpr unsigned rbp = 5;
constexpr std::array<unsigned, 16> dwarf{0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15};

struct Instruction {
  std::size_t length = 0;  // 0: not known
  std::int64_t down = 0;   // bytes that the stack pointer goes down
  std::optional<unsigned> pushed;
  std::optional<unsigned> written;   // general register
  std::optional<std::int64_t> jump;  // of a conditional one, from the next instruction
  bool sets_frame_pointer = false;
};

template <class Value>
std::int64_t value_at(Code code, std::size_t at) {
  Value value{};
  if (at + sizeof value <= code.size()) std::memcpy(&value, code.data() + at, sizeof value);
  return value;
}

struct Operands {
  std::size_t length = 0;  // of ModRM, SIB and displacement; 0: cut
  unsigned mode = 0;
  unsigned reg = 0;
  unsigned rm = 0;
  unsigned base = 0;  // of a SIB byte
};

Operands operands_at(Code code, std::size_t at, unsigned rex) {
  Operands result;
  if (at >= code.size()) return result;
  result.mode = code[at] >> 6;
  result.reg = (code[at] >> 3 & 7u) | (rex & 4) << 1;
  result.rm = (code[at] & 7u) | (rex & 1) << 3;
  const unsigned low = code[at] & 7u;
  std::size_t length = 1;
  if (result.mode != 3 && low == 4) {
    if (at + 1 >= code.size()) return result;
    result.base = (code[at + 1] & 7u) | (rex & 1) << 3;
    ++length;
    if (result.mode == 0 && (code[at + 1] & 7) == 5) length += 4;
  }
  if (result.mode == 1) length += 1;
  if (result.mode == 2 || (result.mode == 0 && low == 5)) length += 4;
  if (at + length <= code.size()) result.length = length;
  return result;
}

// After `0f`.
Instruction decode_two_byte(Code code, std::size_t at, unsigned rex) {
  Instruction result;
  if (at >= code.size()) return result;
  const unsigned opcode = code[at++];
  if (opcode == 0x05) {  // syscall
    result.length = at;
    return result;
  }
  if ((opcode & 0xf0) == 0x80) {  // jcc rel32
    if (at + 4 > code.size()) return result;
    result.jump = value_at<std::int32_t>(code, at);
    result.length = at + 4;
    return result;
  }
  const bool known = opcode == 0x1e || opcode == 0x1f || (opcode >= 0x10 && opcode <= 0x17) ||
                     (opcode >= 0x28 && opcode <= 0x2f) || (opcode >= 0x40 && opcode <= 0x70) ||
                     (opcode >= 0x74 && opcode <= 0x76) || opcode == 0x7e || opcode == 0x7f ||
                     (opcode >= 0x90 && opcode <= 0x9f) || opcode == 0xaf || opcode == 0xb6 ||
                     opcode == 0xb7 || opcode == 0xbe || opcode == 0xbf || opcode == 0xc6 ||
                     (opcode >= 0xd0 && opcode <= 0xfe);
  const Operands operands = operands_at(code, at, rex);
  if (!known || operands.length == 0) return result;
  at += operands.length;
  if (opcode == 0x70 || opcode == 0xc6) ++at;
  const bool to_reg = (opcode >= 0x40 && opcode <= 0x4f) || opcode == 0x2c || opcode == 0x2d ||
                      opcode == 0x50 || opcode == 0xaf || (opcode >= 0xb6 && opcode <= 0xbf) ||
                      opcode == 0xd7;
  const bool to_rm = opcode == 0x7e || (opcode >= 0x90 && opcode <= 0x9f);
  if (to_reg) result.written = operands.reg;
  if (to_rm && operands.mode == 3) result.written = operands.rm;
  if (at <= code.size()) result.length = at;
  return result;
}

Instruction decode(Code code) {
  Instruction result;
  std::size_t at = 0;
  bool has_prefix = false;
  bool short_operand = false;
  while (at < code.size() && (code[at] == 0x66 || code[at] == 0xf2 || code[at] == 0xf3)) {
    has_prefix = true;
    short_operand = short_operand || code[at] == 0x66;
    ++at;
  }
  unsigned rex = 0;
  if (at < code.size() && (code[at] & 0xf0) == 0x40) rex = code[at++];
  if (at >= code.size()) return result;
  const bool wide = (rex & 8) != 0;
  const unsigned opcode = code[at++];
  if (opcode == 0x0f) return decode_two_byte(code, at, rex);
  const auto ends = [&](std::size_t immediate) {
    if (at + immediate <= code.size()) result.length = at + immediate;
    return result;
  };
  const std::size_t immediate = short_operand ? 2 : 4;

  if (opcode >= 0x50 && opcode <= 0x57 && !has_prefix) {
    result.down = 8;
    result.pushed = (opcode & 7) | (rex & 1) << 3;
    return ends(0);
  }
  if ((opcode == 0x68 || opcode == 0x6a) && !has_prefix) {
    result.down = 8;
    return ends(opcode == 0x68 ? 4 : 1);
  }
  if (opcode == 0xe8 && !has_prefix) {
    return value_at<std::int32_t>(code, at) == 0 ? Instruction{} : ends(4);  // else it asks for its address
  }
  if (opcode >= 0x70 && opcode <= 0x7f && !has_prefix) {
    result.jump = value_at<std::int8_t>(code, at);
    return ends(1);
  }
  if (opcode >= 0xb0 && opcode <= 0xbf) {
    result.written = (opcode & 7) | (rex & 1) << 3;
    return ends(opcode < 0xb8 ? 1 : wide ? 8 : immediate);
  }
  if (opcode == 0x90 || opcode == 0x98 || opcode == 0x99) return ends(0);
  if (opcode == 0xa8) return ends(1);
  if (opcode == 0xa9) return ends(immediate);
  const bool arithmetic = opcode < 0x40 && (opcode & 7) < 6;
  if (arithmetic && (opcode & 7) >= 4) return ends((opcode & 7) == 4 ? 1 : immediate);

  const Operands operands = operands_at(code, at, rex);
  if (operands.length == 0) return result;
  const unsigned extension = operands.reg & 7;
  const bool on_register = operands.mode == 3;
  const std::size_t displacement = at + operands.length;
  at += operands.length;
  const auto writes_rm = [&] {
    if (on_register) result.written = operands.rm;
  };
  if (arithmetic) {
    if (opcode >= 0x38) return ends(0);  // cmp
    if ((opcode & 7) < 2)
      writes_rm();
    else
      result.written = operands.reg;
    return ends(0);
  }
  switch (opcode) {
    case 0x84:
    case 0x85:
      return ends(0);
    case 0x88:
    case 0x89:
      if (wide && opcode == 0x89 && on_register && operands.rm == rbp && operands.reg == rsp) {
        result.sets_frame_pointer = true;
        return ends(0);
      }
      writes_rm();
      return ends(0);
    case 0x8b:
      if (wide && on_register && operands.reg == rbp && operands.rm == rsp) {
        result.sets_frame_pointer = true;
        return ends(0);
      }
      [[fallthrough]];
    case 0x8a:
    case 0x63:
      result.written = operands.reg;
      return ends(0);
    case 0x8d:
      if (wide && operands.reg == rsp && operands.rm == rsp && operands.base == rsp && !on_register &&
          code[displacement - operands.length + 1] == 0x24) {
        if (operands.mode == 1) result.down = -value_at<std::int8_t>(code, displacement - 1);
        if (operands.mode == 2) result.down = -value_at<std::int32_t>(code, displacement - 4);
        return result.down > 0 ? ends(0) : Instruction{};
      }
      result.written = operands.reg;
      return ends(0);
    case 0x69:
    case 0x6b:
      result.written = operands.reg;
      return ends(opcode == 0x6b ? 1 : immediate);
    case 0x80:
    case 0x81:
    case 0x83: {
      if (wide && on_register && operands.rm == rsp && (extension == 0 || extension == 5)) {
        const std::int64_t value =
            opcode == 0x83 ? value_at<std::int8_t>(code, at) : value_at<std::int32_t>(code, at);
        result.down = extension == 5 ? value : -value;
        return result.down > 0 ? ends(opcode == 0x81 ? immediate : 1) : Instruction{};
      }
      if (extension != 7) writes_rm();
      return ends(opcode == 0x81 ? immediate : 1);
    }
    case 0xc0:
    case 0xc1:
      writes_rm();
      return ends(1);
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
      writes_rm();
      return ends(0);
    case 0xc6:
    case 0xc7:
      if (extension != 0) return result;
      writes_rm();
      return ends(opcode == 0xc6 ? 1 : immediate);
    case 0xf6:
    case 0xf7:
      if (extension >= 2) writes_rm();
      return ends(extension >= 2 ? 0 : opcode == 0xf6 ? 1 : immediate);
    case 0xff:
      if (extension == 6 && !has_prefix) {
        result.down = 8;
        return ends(0);
      }
      if (extension == 2) return ends(0);
      if (extension > 1) return result;
      writes_rm();
      return ends(0);
    default:
      return result;
  }
}

// Whether some instruction may jump to an offset in (0, limit). Instructions are not told apart: what is none
// counts, too. `at`: offset of the code.
bool may_jump_below(Code code, std::int64_t at, std::int64_t limit) {
  const auto reaches = [&](std::int64_t next, std::int64_t offset) {
    return next + offset > 0 && next + offset < limit;
  };
  for (std::size_t i = 0; i + 2 <= code.size(); ++i) {
    const unsigned byte = code[i];
    const std::int64_t here = at + static_cast<std::int64_t>(i);
    const bool is_short = (byte & 0xf0) == 0x70 || byte == 0xeb || (byte & 0xfc) == 0xe0;
    if (is_short && reaches(here + 2, value_at<std::int8_t>(code, i + 1))) return true;
    if (byte == 0xe9 && i + 5 <= code.size() && reaches(here + 5, value_at<std::int32_t>(code, i + 1)))
      return true;
    if (byte == 0x0f && (code[i + 1] & 0xf0) == 0x80 && i + 6 <= code.size() &&
        reaches(here + 6, value_at<std::int32_t>(code, i + 2)))
      return true;
  }
  return false;
}

}  // namespace

EntryPath read_entry(Code before, Code after) {
  EntryPath result;
  const auto pc = static_cast<std::int64_t>(before.size());
  std::int64_t at = 0;
  std::int64_t last_move = 0;  // where the last instruction that moves the stack pointer ends
  std::int64_t skips_to = 0;   // the farthest target up to the PC that a jump on the way has
  bool jumped = false;
  bool saved_frame_pointer = false;
  while (at < pc) {
    const Instruction instruction = decode(before.subspan(static_cast<std::size_t>(at)));
    if (instruction.length == 0) return result;
    if (instruction.written && *instruction.written == rsp) return result;
    if (instruction.written && *instruction.written == rbp) {
      if (!saved_frame_pointer || result.frame_pointer_below) {
        result.frame_pointer_below.reset();
        return result;
      }
    }
    const std::int64_t next = at + static_cast<std::int64_t>(instruction.length);
    if (instruction.jump) {
      jumped = true;
      const std::int64_t target = next + *instruction.jump;
      if (target > 0 && target < (result.frame_pointer_below ? next : last_move)) return result;
      if (target <= pc) skips_to = std::max(skips_to, target);
    }
    if (instruction.down != 0) {
      if (skips_to > at) return result;
      result.below += static_cast<std::uint64_t>(instruction.down);
      last_move = next;
    }
    if (instruction.pushed) {
      const unsigned number = dwarf[*instruction.pushed];
      if (std::ranges::find(result.saved, number, &EntryPath::Saved::number) == result.saved.end())
        result.saved.push_back({number, result.below});
      saved_frame_pointer = saved_frame_pointer || *instruction.pushed == rbp;
    }
    if (instruction.sets_frame_pointer) {
      if (!saved_frame_pointer || jumped || result.frame_pointer_below) return result;
      result.frame_pointer_below = result.below;
    }
    at = next;
  }
  // A loop may move the stack pointer each time, where a frame pointer finds the way back.
  const std::int64_t limit = result.frame_pointer_below ? pc + 1 : last_move;
  result.exact = !may_jump_below(after, pc, limit);
  return result;
}

}  // namespace hangtrace::unwind::x86_64_decoder
