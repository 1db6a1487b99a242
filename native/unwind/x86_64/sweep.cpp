// A function from begin to end, instruction by instruction (Intel SDM, volume 2, appendix A).
#include "unwind/x86_64/sweep.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace hangtrace::unwind::x86_64_decoder {

namespace {

using Kind = Effect::Kind;

constexpr unsigned rsp = 4;
constexpr unsigned rbp = 5;

enum class Map { one_byte, two_byte, three_byte_38, three_byte_3a };

struct Opcode {
  Map map = Map::one_byte;
  unsigned number = 0;
  unsigned rex = 0;
  bool short_operand = false;
  bool vector = false;  // VEX or EVEX: no general registers that matter
  std::size_t end = 0;  // offset behind it; 0: not known
};

template <class Value>
std::int64_t value_at(Code code, std::size_t at) {
  Value value{};
  if (at <= code.size() && code.size() - at >= sizeof value)
    std::memcpy(&value, code.data() + at, sizeof value);
  return value;
}

bool is_prefix(std::uint8_t byte) {
  constexpr std::array<std::uint8_t, 11> prefixes{0x66, 0xf2, 0xf3, 0x2e, 0x36, 0x3e,
                                                  0x26, 0x64, 0x65, 0x67, 0xf0};
  return std::ranges::find(prefixes, byte) != prefixes.end();
}

Opcode read_opcode(Code code) {
  Opcode result;
  std::size_t at = 0;
  for (; at < code.size() && is_prefix(code[at]); ++at) result.short_operand |= code[at] == 0x66;
  const auto left = [&](std::size_t bytes) { return code.size() - at >= bytes; };
  if (left(1) && (code[at] & 0xf0) == 0x40) result.rex = code[at++];
  if (!left(1)) return result;
  const unsigned first = code[at++];
  const auto vector = [&](unsigned map, std::size_t opcode_at) {
    constexpr std::array<Map, 4> maps{Map::one_byte, Map::two_byte, Map::three_byte_38, Map::three_byte_3a};
    if (map == 5 || map == 6) map = 2;  // half precision: as map 2, none has an immediate
    if (map == 0 || map >= maps.size() || code.size() <= opcode_at) return;
    result.map = maps[map];
    result.number = code[opcode_at];
    result.vector = true;
    result.end = opcode_at + 1;
  };
  if (first == 0xc5) {
    vector(1, at + 1);
  } else if (first == 0xc4 && left(1)) {
    vector(code[at] & 31u, at + 2);
  } else if (first == 0x62 && left(1)) {
    vector(code[at] & 7u, at + 3);
  } else if (first != 0x0f) {
    result.number = first;
    result.end = at;
  } else if (left(1) && (code[at] == 0x38 || code[at] == 0x3a)) {
    result.map = code[at] == 0x38 ? Map::three_byte_38 : Map::three_byte_3a;
    if (left(2)) result.number = code[at + 1];
    if (left(2)) result.end = at + 2;
  } else if (left(1)) {
    result.map = Map::two_byte;
    result.number = code[at];
    result.end = at + 1;
  }
  return result;
}

bool in(unsigned number, unsigned first, unsigned last) {
  return number >= first && number <= last;
}

// Whether ModRM follows. nullopt: no such instruction, or one that is not met in compiled code.
std::optional<bool> has_modrm(const Opcode& opcode) {
  const unsigned n = opcode.number;
  switch (opcode.map) {
    case Map::one_byte:
      if (n < 0x40)
        return (n & 7) < 4 ? std::optional(true) : (n & 7) < 6 ? std::optional(false) : std::nullopt;
      if (n == 0x63 || n == 0x69 || n == 0x6b || in(n, 0x80, 0x8f) || n == 0xc0 || n == 0xc1 || n == 0xc6 ||
          n == 0xc7 || in(n, 0xd0, 0xd3) || in(n, 0xd8, 0xdf) || n == 0xf6 || n == 0xf7 || n >= 0xfe) {
        return true;
      }
      if (in(n, 0x40, 0x4f) || in(n, 0x60, 0x67) || n == 0x9a || n == 0x9b || n == 0xc4 || n == 0xc5 ||
          n == 0xc8 || n == 0xca || n == 0xcb || n == 0xce || n == 0xcf || in(n, 0xd4, 0xd6) || n == 0xea) {
        return std::nullopt;
      }
      return false;
    case Map::two_byte:
      if (opcode.vector) return n != 0x77;
      if (n == 0x05 || n == 0x0b || n == 0x31 || n == 0x77 || in(n, 0x80, 0x8f) || n == 0xa2 ||
          in(n, 0xc8, 0xcf)) {
        return false;
      }
      if (in(n, 0x04, 0x0c) || n == 0x0e || n == 0x0f || in(n, 0x24, 0x27) || in(n, 0x30, 0x3f) ||
          n == 0xa0 || n == 0xa1 || in(n, 0xa6, 0xaa) || n == 0xff) {
        return std::nullopt;
      }
      return true;
    case Map::three_byte_38:
    case Map::three_byte_3a:
      return true;
  }
  return std::nullopt;
}

std::size_t immediate_size(const Opcode& opcode, unsigned extension) {
  const unsigned n = opcode.number;
  const std::size_t operand = opcode.short_operand ? 2 : 4;
  switch (opcode.map) {
    case Map::one_byte:
      if (n < 0x40) return (n & 7) == 4 ? 1 : (n & 7) == 5 ? operand : 0;
      if (n == 0x6a || n == 0x6b || in(n, 0x70, 0x7f) || n == 0x80 || n == 0x83 || n == 0xa8 ||
          in(n, 0xb0, 0xb7) || n == 0xc0 || n == 0xc1 || n == 0xc6 || n == 0xcd || in(n, 0xe0, 0xe7) ||
          n == 0xeb || (n == 0xf6 && extension < 2)) {
        return 1;
      }
      if (n == 0x68 || n == 0x69 || n == 0x81 || n == 0xa9 || n == 0xc7 || (n == 0xf7 && extension < 2))
        return operand;
      if (in(n, 0xb8, 0xbf)) return (opcode.rex & 8) != 0 ? 8 : operand;
      if (in(n, 0xa0, 0xa3)) return 8;
      if (n == 0xe8 || n == 0xe9) return 4;
      return n == 0xc2 ? 2 : 0;
    case Map::two_byte:
      if (!opcode.vector && in(n, 0x80, 0x8f)) return 4;
      return in(n, 0x70, 0x73) || n == 0xc2 || in(n, 0xc4, 0xc6) ||
                     (!opcode.vector && (n == 0xa4 || n == 0xac || n == 0xba))
                 ? 1
                 : 0;
    case Map::three_byte_38:
      return 0;
    case Map::three_byte_3a:
      return 1;
  }
  return 0;
}

struct Operands {
  std::size_t length = 0;  // 0: cut
  unsigned mode = 0;
  unsigned reg = 0;
  unsigned rm = 0;
  std::optional<unsigned> base;  // of an operand base + displacement
  std::int64_t displacement = 0;
  bool is_relative = false;  // to the next instruction
};

Operands read_operands(Code code, std::size_t at, unsigned rex) {
  Operands result;
  if (at >= code.size()) return result;
  const unsigned low = code[at] & 7u;
  result.mode = code[at] >> 6;
  result.reg = (code[at] >> 3 & 7u) | (rex & 4) << 1;
  result.rm = low | (rex & 1) << 3;
  std::size_t length = 1;
  std::size_t size = result.mode == 1 ? 1 : result.mode == 2 ? 4 : 0;
  if (result.mode != 3) result.base = result.rm;
  if (result.mode != 3 && low == 4) {
    if (at + 1 >= code.size()) return result;
    const unsigned sib = code[at + 1];
    result.base = (sib & 7u) | (rex & 1) << 3;
    if ((sib >> 3 & 7) != 4 || (rex & 2) != 0) result.base.reset();  // with an index
    ++length;
    if (result.mode == 0 && (sib & 7) == 5) {
      size = 4;
      result.base.reset();
    }
  } else if (result.mode == 0 && low == 5) {
    size = 4;
    result.base.reset();
    result.is_relative = true;
  }
  result.displacement = size == 1   ? value_at<std::int8_t>(code, at + length)
                        : size == 4 ? value_at<std::int32_t>(code, at + length)
                                    : 0;
  if (at + length + size <= code.size()) result.length = length + size;
  return result;
}

Effect moved(Effect effect, std::int64_t up) {
  effect.kind = up < 0 ? Kind::down : Kind::up;
  effect.amount = static_cast<std::uint64_t>(up < 0 ? -up : up);
  return effect;
}

Effect pushed(Effect effect) {
  effect.sets_top = true;
  return moved(effect, -8);
}

// One-byte opcodes with ModRM that write a general register of 32 or 64 bits.
Effect with_operands(Effect effect, unsigned n, unsigned rex, const Operands& operands,
                     std::int64_t immediate, Address next) {
  const unsigned extension = operands.reg & 7;
  const bool on_register = operands.mode == 3;
  const bool wide = (rex & 8) != 0;
  const bool rm_is_rsp = on_register && operands.rm == rsp;
  const bool reg_is_rsp = operands.reg == rsp;
  const bool is_top = !on_register && operands.base == rsp && operands.displacement == 0;
  const auto by_register = [&](bool is_so) {
    effect.moves_by_register = is_so;
    return effect;
  };
  const auto restores = [&] {
    effect.kind = Kind::restores;
    return effect;
  };
  if (n < 0x40) {
    const bool is_cmp = n >= 0x38;
    return by_register(!is_cmp && ((n & 7) < 2 ? rm_is_rsp : reg_is_rsp));
  }
  switch (n) {
    case 0x80:
    case 0x81:
    case 0x83:
      if (!rm_is_rsp || extension == 7) return effect;
      if (wide && extension == 0) return moved(effect, immediate);
      if (wide && extension == 5) return moved(effect, -immediate);
      return by_register(true);
    case 0x86:
    case 0x87:
      effect.sets_top = wide && is_top;
      return by_register(rm_is_rsp || reg_is_rsp);
    case 0x89:
      effect.sets_top = wide && is_top;
      if (wide && rm_is_rsp && operands.reg == rbp) return restores();
      [[fallthrough]];
    case 0x88:
      return by_register(rm_is_rsp);
    case 0x8b:
      if (wide && reg_is_rsp && on_register && operands.rm == rbp) return restores();
      [[fallthrough]];
    case 0x8a:
    case 0x63:
    case 0x69:
    case 0x6b:
      return by_register(reg_is_rsp);
    case 0x8d:
      if (!reg_is_rsp) return effect;
      if (wide && operands.base == rsp) return moved(effect, operands.displacement);
      if (wide && operands.base == rbp) return restores();
      // The way out of a function that has aligned its frame: lea rsp, [r10 - 8].
      if (wide && operands.base && operands.displacement == -8) return restores();
      return by_register(true);
    case 0x8f:
      return rm_is_rsp ? by_register(true) : moved(effect, 8);
    case 0xc0:
    case 0xc1:
    case 0xc6:
    case 0xc7:
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
    case 0xfe:
      return by_register(rm_is_rsp);
    case 0xf6:
    case 0xf7:
      return by_register(rm_is_rsp && (extension == 2 || extension == 3));
    case 0xff:
      if (extension == 2) effect.kind = Kind::call;
      if (extension == 4) {
        effect.kind = operands.is_relative ? Kind::pointer_jump : Kind::computed_jump;
        effect.target = next + static_cast<Address>(operands.displacement);
      }
      if (extension == 6) return pushed(effect);
      if (extension == 3 || extension == 5) effect.length = 0;
      return by_register(rm_is_rsp && extension < 2);
    default:
      return effect;
  }
}

Effect without_operands(Effect effect, unsigned n, unsigned rex, std::int64_t immediate, Address next) {
  const auto jump = [&](Kind kind) {
    effect.kind = kind;
    effect.target = next + static_cast<Address>(immediate);
    return effect;
  };
  const unsigned reg = (n & 7) | (rex & 1) << 3;
  if (in(n, 0x50, 0x57) || n == 0x68 || n == 0x6a || n == 0x9c) return pushed(effect);
  if (in(n, 0x58, 0x5f) || n == 0x9d) {
    effect.moves_by_register = n != 0x9d && reg == rsp;
    return moved(effect, 8);
  }
  if (in(n, 0x91, 0x97) || in(n, 0xb8, 0xbf)) effect.moves_by_register = reg == rsp;
  if (in(n, 0x70, 0x7f) || in(n, 0xe0, 0xe3)) return jump(Kind::conditional_jump);
  if (n == 0xe9 || n == 0xeb) return jump(Kind::jump);
  if (n == 0xe8) return jump(Kind::call);
  if (n == 0xc9) effect.kind = Kind::restores;
  if (n == 0xc2 || n == 0xc3 || n == 0xf4 || n == 0xcc) effect.kind = Kind::leaves;
  return effect;
}

}  // namespace

Effect effect_of(Code code, Address at) {
  const Opcode opcode = read_opcode(code);
  const auto modrm = opcode.end == 0 ? std::nullopt : has_modrm(opcode);
  if (!modrm) return {};
  Operands operands;
  std::size_t end = opcode.end;
  if (*modrm) {
    operands = read_operands(code, end, opcode.rex);
    if (operands.length == 0) return {};
    end += operands.length;
  }
  const std::size_t size = immediate_size(opcode, operands.reg & 7);
  if (size > code.size() - end) return {};
  const std::int64_t immediate = size == 1   ? value_at<std::int8_t>(code, end)
                                 : size == 4 ? value_at<std::int32_t>(code, end)
                                             : 0;
  Effect effect;
  effect.length = end + size;
  const Address next = at + effect.length;
  if (opcode.map == Map::one_byte) {
    return *modrm ? with_operands(effect, opcode.number, opcode.rex, operands, immediate, next)
                  : without_operands(effect, opcode.number, opcode.rex, immediate, next);
  }
  if (opcode.map == Map::two_byte && !opcode.vector) {
    if (in(opcode.number, 0x80, 0x8f)) {
      effect.kind = Kind::conditional_jump;
      effect.target = next + static_cast<Address>(immediate);
    }
    if (opcode.number == 0x0b) effect.kind = Kind::leaves;
    if (in(opcode.number, 0x40, 0x4f)) effect.moves_by_register = operands.reg == rsp;
  }
  return effect;
}

std::optional<std::uint64_t> pushed_for_call(Code body, std::size_t pc) {
  std::uint64_t pushed = 0;  // and not yet called for
  std::uint64_t owed = 0;    // to be given back right here
  std::optional<std::uint64_t> result;
  for (std::size_t at = 0; at < body.size();) {
    if (at == pc && (owed != 0 || pushed == 0)) result = owed;
    const Effect effect = effect_of(body.subspan(at), at);
    if (effect.length == 0 || effect.moves_by_register) return std::nullopt;
    const bool gives_back = effect.kind == Kind::up && owed != 0;
    if (owed != 0 && (!gives_back || effect.amount > owed)) return std::nullopt;
    if (gives_back) {
      owed -= effect.amount;
    } else if (effect.kind == Kind::down) {
      pushed += effect.amount;
    } else if (effect.kind == Kind::call) {
      owed = pushed;
      pushed = 0;
    } else if (pushed != 0 && effect.kind != Kind::plain) {
      return std::nullopt;
    }
    at += effect.length;
    if (at > pc && !result) return std::nullopt;  // not between two instructions
  }
  if (pc == body.size() && pushed == 0 && owed == 0) result = 0;
  return pushed == 0 && owed == 0 ? result : std::nullopt;
}

bool find_exits(Code function, Address at, std::vector<Jump>& into) {
  bool goes_on = true;
  bool top_is_set = false;
  for (std::size_t offset = 0; offset < function.size();) {
    const Effect effect = effect_of(function.subspan(offset), at + offset);
    if (effect.length == 0) return false;
    switch (effect.kind) {
      case Kind::jump:
        into.push_back({Jump::Kind::always, effect.target, at + offset});
        break;
      case Kind::conditional_jump:
        into.push_back({Jump::Kind::conditional, effect.target, at + offset});
        break;
      case Kind::pointer_jump:
        into.push_back({Jump::Kind::pointer, effect.target, at + offset});
        break;
      case Kind::computed_jump:
        into.push_back({Jump::Kind::computed, at + offset, at + offset});
        break;
      case Kind::leaves:
        if (top_is_set) into.push_back({Jump::Kind::as_return, at + offset, at + offset});
        break;
      default:
        break;
    }
    // Behind a call that never returns comes whatever comes.
    goes_on = effect.kind != Kind::jump && effect.kind != Kind::pointer_jump &&
              effect.kind != Kind::computed_jump && effect.kind != Kind::leaves && effect.kind != Kind::call;
    top_is_set = effect.sets_top;
    offset += effect.length;
  }
  if (goes_on) into.push_back({Jump::Kind::conditional, at + function.size(), at + function.size()});
  return true;
}

}  // namespace hangtrace::unwind::x86_64_decoder
