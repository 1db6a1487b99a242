#include "unwind/cfi.hpp"

#include <algorithm>

#include "elf/cursor.hpp"
#include "unwind/pointer.hpp"

namespace hangtrace::unwind {

namespace {

using elf::Cursor;

constexpr std::size_t max_remembered = 32;  // at once
constexpr int max_remembers = 4096;         // in one program
constexpr std::size_t max_expressions = 64 << 10;

std::uint64_t read_id(Cursor& cursor, const Entry& entry, Flavour flavour) {
  if (flavour == Flavour::debug_frame && entry.is_64_bit) return cursor.value<std::uint64_t>();
  return cursor.value<std::uint32_t>();
}

bool is_cie_id(std::uint64_t id, const Entry& entry, Flavour flavour) {
  if (flavour == Flavour::eh_frame) return id == 0;
  return id == (entry.is_64_bit ? ~std::uint64_t{0} : 0xffffffffu);
}

// 'z' augmentation: only the letters that compilers emit are understood.
bool parse_augmentation(std::string_view letters, Cursor data, Address data_at, Cie& cie) {
  for (const char letter : letters) {
    switch (letter) {
      case 'R':
        cie.pointer_encoding = data.value<std::uint8_t>();
        break;
      case 'L':
        data.value<std::uint8_t>();
        break;
      case 'P': {
        const auto encoding = data.value<std::uint8_t>();
        // Only the size matters, and that depends on the place if it is aligned.
        if (!read_pointer(data, encoding == 0x50 ? encoding : encoding & 0x0f, {data_at})) return false;
        break;
      }
      case 'S':
        cie.signal_frame = true;
        break;
      case 'B':  // aarch64: return addresses signed with key B
      case 'G':  // aarch64: memory tagging
        break;
      default:
        return false;
    }
  }
  return data.ok();
}

// Runs the instructions of a CIE and of an FDE.
class Program {
 public:
  Program(const Cie& cie, Row& row, Address location, Address target)
      : cie_(cie), row_(row), location_(location), target_(target) {}

  // `initial`: the rules after the CIE, null while running the CIE itself.
  bool run(std::span<const std::byte> instructions, const Row* initial, Address position) {
    Cursor cursor(instructions);
    initial_ = initial;
    position_ = position;
    while (!cursor.at_end() && !done_) {
      if (!step(cursor) || !cursor.ok()) return false;
    }
    return true;
  }

 private:
  Rule* rule(std::uint64_t number) { return number < max_registers ? &row_.rules[number] : &ignored_; }

  void set(std::uint64_t number, RuleKind kind, std::int64_t value) { *rule(number) = {value, 0, kind}; }

  std::int64_t factored(std::uint64_t value) const {
    return static_cast<std::int64_t>(value * static_cast<std::uint64_t>(cie_.data_alignment));
  }
  std::int64_t factored(std::int64_t value) const { return factored(static_cast<std::uint64_t>(value)); }

  bool advance(std::uint64_t delta) {
    const Address next = location_ + delta * cie_.code_alignment;
    if (next > target_) {
      done_ = true;
    } else {
      location_ = next;
    }
    return true;
  }

  bool restore(std::uint64_t number) {
    if (initial_ == nullptr) return false;
    if (number < max_registers) row_.rules[number] = initial_->rules[number];
    return true;
  }

  // Copies an expression out of the instructions; the row outlives them.
  bool keep_expression(Cursor& cursor, std::int64_t& begin, std::uint32_t& size) {
    const auto bytes = cursor.take(cursor.uleb());
    if (!cursor.ok() || row_.expressions.size() + bytes.size() > max_expressions) return false;
    begin = static_cast<std::int64_t>(row_.expressions.size());
    size = static_cast<std::uint32_t>(bytes.size());
    row_.expressions.insert(row_.expressions.end(), bytes.begin(), bytes.end());
    return true;
  }

  bool set_expression(Cursor& cursor, RuleKind kind) {
    Rule* const target = rule(cursor.uleb());
    Rule next{0, 0, kind};
    if (!keep_expression(cursor, next.value, next.size)) return false;
    *target = next;
    return true;
  }

  bool define_cfa(std::uint64_t number, std::int64_t offset) {
    if (number >= max_registers) return false;
    row_.cfa_kind = CfaKind::register_offset;
    row_.cfa_register = static_cast<unsigned>(number);
    row_.cfa_offset = offset;
    return true;
  }

  bool move_cfa(std::int64_t offset) {
    return row_.cfa_kind == CfaKind::register_offset && define_cfa(row_.cfa_register, offset);
  }

  bool remember() {
    if (remembered_.size() >= max_remembered || ++remembers_ > max_remembers) return false;
    // Expressions are only ever appended, so ranges of the remembered row still hold.
    std::vector<std::byte> expressions = std::move(row_.expressions);
    row_.expressions.clear();
    remembered_.push_back(row_);
    row_.expressions = std::move(expressions);
    return true;
  }

  bool restore_remembered() {
    if (remembered_.empty()) return false;
    Row row = std::move(remembered_.back());
    remembered_.pop_back();
    row.expressions = std::move(row_.expressions);
    row_ = std::move(row);
    return true;
  }

  bool step(Cursor& cursor) {
    const auto byte = cursor.value<std::uint8_t>();
    const unsigned low = byte & 0x3f;
    switch (byte & 0xc0) {
      case 0x40:  // DW_CFA_advance_loc
        return advance(low);
      case 0x80:  // DW_CFA_offset
        set(low, RuleKind::offset, factored(cursor.uleb()));
        return true;
      case 0xc0:  // DW_CFA_restore
        return restore(low);
      default:
        return extended(low, cursor);
    }
  }

  bool extended(unsigned operation, Cursor& cursor) {
    switch (operation) {
      case 0x00:  // DW_CFA_nop
        return true;
      case 0x01: {  // DW_CFA_set_loc
        const auto location = read_pointer(cursor, cie_.pointer_encoding, {position_, 0});
        if (!location) return false;
        if (*location > target_) {
          done_ = true;
        } else {
          location_ = *location;
        }
        return true;
      }
      case 0x02:  // DW_CFA_advance_loc1
        return advance(cursor.value<std::uint8_t>());
      case 0x03:  // DW_CFA_advance_loc2
        return advance(cursor.value<std::uint16_t>());
      case 0x04:  // DW_CFA_advance_loc4
        return advance(cursor.value<std::uint32_t>());
      case 0x1d:  // DW_CFA_MIPS_advance_loc8
        return advance(cursor.value<std::uint64_t>());
      case 0x05: {  // DW_CFA_offset_extended
        const std::uint64_t number = cursor.uleb();
        set(number, RuleKind::offset, factored(cursor.uleb()));
        return true;
      }
      case 0x06:  // DW_CFA_restore_extended
        return restore(cursor.uleb());
      case 0x07:  // DW_CFA_undefined
        set(cursor.uleb(), RuleKind::undefined, 0);
        return true;
      case 0x08:  // DW_CFA_same_value
        set(cursor.uleb(), RuleKind::same, 0);
        return true;
      case 0x09: {  // DW_CFA_register
        const std::uint64_t number = cursor.uleb();
        set(number, RuleKind::other_register, static_cast<std::int64_t>(cursor.uleb()));
        return true;
      }
      case 0x0a:  // DW_CFA_remember_state
        return remember();
      case 0x0b:  // DW_CFA_restore_state
        return restore_remembered();
      case 0x0c: {  // DW_CFA_def_cfa
        const std::uint64_t number = cursor.uleb();
        return define_cfa(number, static_cast<std::int64_t>(cursor.uleb()));
      }
      case 0x0d:  // DW_CFA_def_cfa_register
        return row_.cfa_kind == CfaKind::register_offset && define_cfa(cursor.uleb(), row_.cfa_offset);
      case 0x0e:  // DW_CFA_def_cfa_offset
        return move_cfa(static_cast<std::int64_t>(cursor.uleb()));
      case 0x0f:  // DW_CFA_def_cfa_expression
        row_.cfa_kind = CfaKind::expression;
        return keep_expression(cursor, row_.cfa_offset, row_.cfa_expression_size);
      case 0x10:  // DW_CFA_expression
        return set_expression(cursor, RuleKind::expression);
      case 0x11: {  // DW_CFA_offset_extended_sf
        const std::uint64_t number = cursor.uleb();
        set(number, RuleKind::offset, factored(cursor.sleb()));
        return true;
      }
      case 0x12: {  // DW_CFA_def_cfa_sf
        const std::uint64_t number = cursor.uleb();
        return define_cfa(number, factored(cursor.sleb()));
      }
      case 0x13:  // DW_CFA_def_cfa_offset_sf
        return move_cfa(factored(cursor.sleb()));
      case 0x14: {  // DW_CFA_val_offset
        const std::uint64_t number = cursor.uleb();
        set(number, RuleKind::value_offset, factored(cursor.uleb()));
        return true;
      }
      case 0x15: {  // DW_CFA_val_offset_sf
        const std::uint64_t number = cursor.uleb();
        set(number, RuleKind::value_offset, factored(cursor.sleb()));
        return true;
      }
      case 0x16:  // DW_CFA_val_expression
        return set_expression(cursor, RuleKind::value_expression);
      case 0x2c:  // DW_CFA_AARCH64_negate_ra_state_with_pc
      case 0x2d:  // DW_CFA_AARCH64_negate_ra_state, elsewhere DW_CFA_GNU_window_save
        // Whether the return address is signed makes no difference: its signature is always removed.
        return cie_.machine == elf::Machine::aarch64;
      case 0x2e:  // DW_CFA_GNU_args_size
        cursor.uleb();
        return true;
      case 0x2f: {  // DW_CFA_GNU_negative_offset_extended
        const std::uint64_t number = cursor.uleb();
        set(number, RuleKind::offset, factored(std::uint64_t{0} - cursor.uleb()));
        return true;
      }
      default:
        return false;
    }
  }

  const Cie& cie_;
  Row& row_;
  Address location_;
  Address target_;
  Address position_ = 0;
  const Row* initial_ = nullptr;
  bool done_ = false;
  Rule ignored_;
  std::vector<Row> remembered_;
  int remembers_ = 0;
};

// Rows are kept, so they hold no expressions of other addresses.
void drop_unused(Row& row) {
  std::vector<std::byte> used;
  const auto keep = [&](std::int64_t& begin, std::uint32_t size) {
    const auto bytes = row.expression(begin, size);
    begin = static_cast<std::int64_t>(used.size());
    used.insert(used.end(), bytes.begin(), bytes.end());
  };
  if (row.cfa_kind == CfaKind::expression) keep(row.cfa_offset, row.cfa_expression_size);
  for (Rule& rule : row.rules) {
    if (rule.kind == RuleKind::expression || rule.kind == RuleKind::value_expression)
      keep(rule.value, rule.size);
  }
  row.expressions = std::move(used);
}

}  // namespace

std::optional<Cie> parse_cie(const Entry& entry, Flavour flavour, elf::Machine machine) {
  Cursor cursor(entry.bytes);
  if (!is_cie_id(read_id(cursor, entry, flavour), entry, flavour)) return std::nullopt;
  const auto version = cursor.value<std::uint8_t>();
  if (version != 1 && version != 3 && version != 4) return std::nullopt;
  std::string_view augmentation = cursor.cstring();
  Cie cie;
  cie.machine = machine;
  if (augmentation.starts_with("eh")) {  // gcc 2: a pointer that is of no use here
    cursor.value<std::uint64_t>();
    augmentation.remove_prefix(2);
  }
  if (version >= 4) {
    const auto address_size = cursor.value<std::uint8_t>();
    const auto segment_size = cursor.value<std::uint8_t>();
    if (address_size != 8 || segment_size != 0) return std::nullopt;
  }
  cie.code_alignment = cursor.uleb();
  cie.data_alignment = cursor.sleb();
  cie.return_address = static_cast<unsigned>(version == 1 ? cursor.value<std::uint8_t>()
                                                          : std::min<std::uint64_t>(cursor.uleb(), 255));
  if (augmentation.starts_with('z')) {
    cie.has_augmentation = true;
    const std::uint64_t size = cursor.uleb();
    const Address data_at = entry.position + cursor.position();
    const auto data = cursor.take(size);
    if (!parse_augmentation(augmentation.substr(1), Cursor(data), data_at, cie)) return std::nullopt;
  } else if (!augmentation.empty()) {
    return std::nullopt;
  }
  const auto instructions = cursor.take(cursor.left());
  if (!cursor.ok() || cie.return_address >= max_registers) return std::nullopt;
  cie.instructions.assign(instructions.begin(), instructions.end());
  return cie;
}

std::optional<Address> cie_position(const Entry& fde, Flavour flavour) {
  Cursor cursor(fde.bytes);
  const std::uint64_t id = read_id(cursor, fde, flavour);
  if (!cursor.ok() || is_cie_id(id, fde, flavour)) return std::nullopt;
  if (flavour == Flavour::debug_frame) return id;
  if (id > fde.position) return std::nullopt;
  return fde.position - id;  // from the id field itself, backwards
}

std::optional<FdeRange> parse_fde(const Entry& fde, const Cie& cie, Flavour flavour, Address data_base,
                                  const elf::Module* module) {
  Cursor cursor(fde.bytes);
  read_id(cursor, fde, flavour);
  const auto begin = read_pointer(cursor, cie.pointer_encoding, {fde.position, data_base, module});
  const auto size = read_pointer(cursor, cie.pointer_encoding & 0x0f, {});  // a number, not an address
  if (!begin || !size) return std::nullopt;
  if (cie.has_augmentation) cursor.take(cursor.uleb());
  if (!cursor.ok() || *begin + *size < *begin) return std::nullopt;
  return FdeRange{*begin, *begin + *size, cursor.position()};
}

std::optional<Row> evaluate(const Entry& fde, const FdeRange& range, const Cie& cie, Address va) {
  if (va < range.begin || va >= range.end || range.instructions > fde.bytes.size()) return std::nullopt;
  Row row;
  row.return_address = cie.return_address;
  row.signal_frame = cie.signal_frame;
  row.begin = range.begin;
  row.end = range.end;
  // The instructions of a CIE hold for all addresses.
  if (!Program(cie, row, 0, ~Address{0}).run(cie.instructions, nullptr, 0)) return std::nullopt;
  const Row initial = row;
  const auto instructions = std::span(fde.bytes).subspan(range.instructions);
  if (!Program(cie, row, range.begin, va).run(instructions, &initial, fde.position + range.instructions)) {
    return std::nullopt;
  }
  if (row.cfa_kind == CfaKind::none) return std::nullopt;
  drop_unused(row);
  return row;
}

}  // namespace hangtrace::unwind
