#include "dwarf/unit.hpp"

#include <algorithm>

#include "dwarf/constants.hpp"

namespace hangtrace::dwarf {

namespace {

constexpr std::uint64_t header_bytes = 64;
constexpr std::uint64_t max_unit = 128 << 20;
constexpr std::uint64_t first_entry_bytes = 4096;
constexpr std::size_t max_abbreviations = 1 << 20;
constexpr std::size_t max_attributes = 1024;
constexpr std::size_t max_ranges = 1 << 16;

std::uint64_t read_offset(elf::Cursor& cursor, bool wide) {
  return wide ? cursor.value<std::uint64_t>() : cursor.value<std::uint32_t>();
}

std::uint64_t read_3_bytes(elf::Cursor& cursor) {
  const std::uint64_t low = cursor.value<std::uint16_t>();
  return low | std::uint64_t{cursor.value<std::uint8_t>()} << 16;
}

std::string_view read_text(elf::Cursor& cursor) {
  return cursor.cstring();
}

// Bytes of a value, if they are always as many.
std::optional<std::uint32_t> fixed_size(std::uint64_t form, const UnitHeader& unit) {
  const std::uint32_t offset_size = unit.offset_size();
  switch (form) {
    case form::flag_present:
    case form::implicit_const:
      return 0;
    case form::data1:
    case form::flag:
    case form::ref1:
    case form::strx1:
    case form::addrx1:
      return 1;
    case form::data2:
    case form::ref2:
    case form::strx2:
    case form::addrx2:
      return 2;
    case form::strx3:
    case form::addrx3:
      return 3;
    case form::data4:
    case form::ref4:
    case form::strx4:
    case form::addrx4:
    case form::ref_sup4:
      return 4;
    case form::addr:
    case form::data8:
    case form::ref8:
    case form::ref_sig8:
    case form::ref_sup8:
      return 8;
    case form::data16:
      return 16;
    case form::strp:
    case form::line_strp:
    case form::strp_sup:
    case form::sec_offset:
    case form::gnu_ref_alt:
    case form::gnu_strp_alt:
      return offset_size;
    case form::ref_addr:
      return unit.version == 2 ? 8 : offset_size;
    default:
      return std::nullopt;
  }
}

}  // namespace

InitialLength read_initial_length(elf::Cursor& cursor) {
  constexpr std::uint32_t wide_mark = 0xffffffff;
  const std::uint64_t length = cursor.value<std::uint32_t>();
  if (length != wide_mark) return {length, false};
  return {cursor.value<std::uint64_t>(), true};
}

std::optional<UnitHeader> read_unit_header(const Section& info, std::uint64_t offset) {
  if (offset >= info.size()) return std::nullopt;
  const auto bytes = info.read(offset, std::min(header_bytes, info.size() - offset));
  if (!bytes) return std::nullopt;
  elf::Cursor cursor(*bytes);
  UnitHeader unit;
  unit.offset = offset;
  const InitialLength initial = read_initial_length(cursor);
  unit.wide = initial.wide;
  const std::uint64_t begin = offset + cursor.position();
  if (!cursor.ok() || initial.length > info.size() - begin) return std::nullopt;
  unit.end = begin + initial.length;
  unit.version = cursor.value<std::uint16_t>();
  if (unit.version < 2 || unit.version > 5) return unit;
  std::uint8_t address_size;
  if (unit.version == 5) {
    unit.type = cursor.value<std::uint8_t>();
    address_size = cursor.value<std::uint8_t>();
    unit.abbreviations = read_offset(cursor, unit.wide);
    if (unit.type == unit_type::skeleton || unit.type == unit_type::split_compile) cursor.take(8);
    if (unit.type == unit_type::type || unit.type == unit_type::split_type)
      cursor.take(8 + unit.offset_size());
  } else {
    unit.type = unit_type::compile;
    unit.abbreviations = read_offset(cursor, unit.wide);
    address_size = cursor.value<std::uint8_t>();
  }
  if (!cursor.ok() || address_size != sizeof(Address) || offset + cursor.position() > unit.end) return unit;
  unit.first_entry = offset + cursor.position();
  return unit;
}

std::optional<AbbreviationTable> AbbreviationTable::read(const Section& section, std::uint64_t offset,
                                                         const UnitHeader& unit) {
  // Its size is nowhere written, so more and more is read until it ends.
  for (std::uint64_t size = 16 << 10;; size *= 16) {
    if (offset >= section.size()) return std::nullopt;
    const std::uint64_t left = section.size() - offset;
    const auto bytes = section.read(offset, std::min(size, left));
    if (!bytes) return std::nullopt;
    AbbreviationTable table;
    elf::Cursor cursor(*bytes);
    for (std::size_t count = 0; count < max_abbreviations; ++count) {
      const std::uint64_t code = cursor.uleb();
      if (code == 0) break;
      Abbreviation abbreviation;
      abbreviation.tag = cursor.uleb();
      abbreviation.has_children = cursor.value<std::uint8_t>() != 0;
      abbreviation.size = 0;
      while (cursor.ok() && abbreviation.attributes.size() < max_attributes) {
        AttributeSpec spec{cursor.uleb(), cursor.uleb(), 0};
        if (spec.form == form::implicit_const) spec.implicit = cursor.sleb();
        if (spec.name == 0 && spec.form == 0) break;
        const auto fixed = fixed_size(spec.form, unit);
        abbreviation.size =
            fixed && abbreviation.size ? std::optional(*abbreviation.size + *fixed) : std::nullopt;
        abbreviation.attributes.push_back(spec);
      }
      if (!cursor.ok()) break;
      if (code == table.dense_.size() + 1) {
        table.dense_.push_back(std::move(abbreviation));
      } else {
        table.others_.emplace(code, std::move(abbreviation));
      }
    }
    if (cursor.ok()) return table;
    if (size >= left) return std::nullopt;
  }
}

const Abbreviation* AbbreviationTable::find(std::uint64_t code) const {
  if (code - 1 < dense_.size()) return &dense_[code - 1];
  const auto found = others_.find(code);
  return found == others_.end() ? nullptr : &found->second;
}

Value read_value(elf::Cursor& cursor, const AttributeSpec& spec, const UnitHeader& unit) {
  using Kind = Value::Kind;
  const auto block = [&cursor](std::uint64_t size) {
    cursor.take(size);
    return Value{};
  };
  switch (spec.form) {
    case form::addr:
      return {Kind::address, cursor.value<std::uint64_t>(), {}};
    case form::data1:
    case form::flag:
      return {Kind::number, cursor.value<std::uint8_t>(), {}};
    case form::data2:
      return {Kind::number, cursor.value<std::uint16_t>(), {}};
    case form::data4:
      return {Kind::number, cursor.value<std::uint32_t>(), {}};
    case form::data8:
      return {Kind::number, cursor.value<std::uint64_t>(), {}};
    case form::udata:
      return {Kind::number, cursor.uleb(), {}};
    case form::sdata:
      return {Kind::number, static_cast<std::uint64_t>(cursor.sleb()), {}};
    case form::implicit_const:
      return {Kind::number, static_cast<std::uint64_t>(spec.implicit), {}};
    case form::flag_present:
      return {Kind::number, 1, {}};
    case form::sec_offset:
      return {Kind::number, read_offset(cursor, unit.wide), {}};
    case form::string:
      return {Kind::text, 0, read_text(cursor)};
    case form::strp:
      return {Kind::string, read_offset(cursor, unit.wide), {}};
    case form::line_strp:
      return {Kind::line_string, read_offset(cursor, unit.wide), {}};
    case form::strx:
    case form::gnu_str_index:
      return {Kind::string_index, cursor.uleb(), {}};
    case form::strx1:
      return {Kind::string_index, cursor.value<std::uint8_t>(), {}};
    case form::strx2:
      return {Kind::string_index, cursor.value<std::uint16_t>(), {}};
    case form::strx3:
      return {Kind::string_index, read_3_bytes(cursor), {}};
    case form::strx4:
      return {Kind::string_index, cursor.value<std::uint32_t>(), {}};
    case form::addrx:
    case form::gnu_addr_index:
      return {Kind::address_index, cursor.uleb(), {}};
    case form::addrx1:
      return {Kind::address_index, cursor.value<std::uint8_t>(), {}};
    case form::addrx2:
      return {Kind::address_index, cursor.value<std::uint16_t>(), {}};
    case form::addrx3:
      return {Kind::address_index, read_3_bytes(cursor), {}};
    case form::addrx4:
      return {Kind::address_index, cursor.value<std::uint32_t>(), {}};
    case form::rnglistx:
      return {Kind::range_index, cursor.uleb(), {}};
    case form::loclistx:
      cursor.uleb();
      return {};
    case form::ref1:
      return {Kind::reference, unit.offset + cursor.value<std::uint8_t>(), {}};
    case form::ref2:
      return {Kind::reference, unit.offset + cursor.value<std::uint16_t>(), {}};
    case form::ref4:
      return {Kind::reference, unit.offset + cursor.value<std::uint32_t>(), {}};
    case form::ref8:
      return {Kind::reference, unit.offset + cursor.value<std::uint64_t>(), {}};
    case form::ref_udata:
      return {Kind::reference, unit.offset + cursor.uleb(), {}};
    case form::ref_addr:
      return {Kind::reference, read_offset(cursor, unit.wide || unit.version == 2), {}};
    case form::ref_sig8:
    case form::ref_sup8:
      cursor.take(8);
      return {Kind::elsewhere, 0, {}};
    case form::ref_sup4:
      cursor.take(4);
      return {Kind::elsewhere, 0, {}};
    case form::strp_sup:
    case form::gnu_ref_alt:
    case form::gnu_strp_alt:
      read_offset(cursor, unit.wide);
      return {Kind::elsewhere, 0, {}};
    case form::block1:
      return block(cursor.value<std::uint8_t>());
    case form::block2:
      return block(cursor.value<std::uint16_t>());
    case form::block4:
      return block(cursor.value<std::uint32_t>());
    case form::block:
    case form::exprloc:
      return block(cursor.uleb());
    case form::data16:
      return block(16);
    case form::indirect: {
      const std::uint64_t form = cursor.uleb();
      // A value that says again that its form follows would have no end.
      if (form != form::indirect && form != form::implicit_const)
        return read_value(cursor, {spec.name, form, 0}, unit);
      break;
    }
    default:
      break;
  }
  cursor.seek(~std::uint64_t{0});  // fails
  return {};
}

std::shared_ptr<Unit> Unit::load(Sections& sections, const UnitHeader& header, Extent extent) {
  if (header.first_entry == 0 || header.end - header.offset > max_unit) return nullptr;
  std::shared_ptr<Unit> unit(new Unit(sections, header));
  std::uint64_t size = header.end - header.offset;
  if (extent == Extent::first_entry) size = std::min(size, first_entry_bytes);
  auto bytes = sections[".debug_info"].read(header.offset, size);
  auto table = AbbreviationTable::read(sections[".debug_abbrev"], header.abbreviations, header);
  if (!bytes || !table) return nullptr;
  unit->bytes_ = std::move(*bytes);
  unit->abbreviations_ = std::move(*table);
  return unit->read_root() ? unit : nullptr;
}

elf::Cursor Unit::entries() const {
  elf::Cursor cursor(bytes_);
  cursor.seek(header_.first_entry - header_.offset);
  return cursor;
}

bool Unit::read_root() {
  elf::Cursor cursor = entries();
  const Abbreviation* abbreviation = abbreviations_.find(cursor.uleb());
  if (abbreviation == nullptr) return false;
  Value directory;
  Value ranges_base;
  for (const AttributeSpec& spec : abbreviation->attributes) {
    const Value value = read_value(cursor, spec, header_);
    switch (spec.name) {
      case attribute::name:
        root_.name = value;
        break;
      case attribute::compilation_directory:
        directory = value;
        break;
      case attribute::statement_list:
        if (value.kind == Value::Kind::number) line_program_ = value.number;
        break;
      case attribute::low_pc:
        root_.low_pc = value;
        break;
      case attribute::high_pc:
        root_.high_pc = value;
        break;
      case attribute::ranges:
        root_.ranges = value;
        break;
      case attribute::string_offsets_base:
        string_offsets_base_ = value.number;
        break;
      case attribute::address_base:
      case attribute::gnu_address_base:
        address_base_ = value.number;
        break;
      case attribute::range_lists_base:
        range_lists_base_ = value.number;
        break;
      case attribute::split_name:
      case attribute::gnu_split_name:
        split_ = true;
        break;
      default:
        break;
    }
  }
  if (!cursor.ok()) return false;
  root_.tag = abbreviation->tag;
  root_.has_children = abbreviation->has_children;
  base_ = address(root_.low_pc).value_or(0);
  directory_ = text(directory);
  name_ = text(root_.name);
  return true;
}

Entry Unit::read_entry(elf::Cursor& cursor, bool skim) const {
  Entry entry;
  const std::uint64_t code = cursor.uleb();
  if (code == 0) return entry;
  const Abbreviation* abbreviation = abbreviations_.find(code);
  if (abbreviation == nullptr) {
    cursor.seek(~std::uint64_t{0});
    return entry;
  }
  entry.tag = abbreviation->tag;
  entry.has_children = abbreviation->has_children;
  if (skim && entry.tag != tag::subprogram && entry.tag != tag::inlined_subroutine) {
    if (abbreviation->size) {
      cursor.take(*abbreviation->size);
    } else {
      for (const AttributeSpec& spec : abbreviation->attributes) read_value(cursor, spec, header_);
    }
    return entry;
  }
  for (const AttributeSpec& spec : abbreviation->attributes) {
    const Value value = read_value(cursor, spec, header_);
    switch (spec.name) {
      case attribute::name:
        entry.name = value;
        break;
      case attribute::linkage_name:
      case attribute::mips_linkage_name:
        entry.linkage_name = value;
        break;
      case attribute::low_pc:
        entry.low_pc = value;
        break;
      case attribute::high_pc:
        entry.high_pc = value;
        break;
      case attribute::ranges:
        entry.ranges = value;
        break;
      case attribute::abstract_origin:
        entry.abstract_origin = value;
        break;
      case attribute::specification:
        entry.specification = value;
        break;
      case attribute::call_file:
        entry.call_file = value;
        break;
      case attribute::call_line:
        entry.call_line = value;
        break;
      default:
        break;
    }
  }
  return entry;
}

std::string Unit::text(const Value& value) const {
  switch (value.kind) {
    case Value::Kind::text:
      return std::string(value.in_place);
    case Value::Kind::string:
      return sections_[".debug_str"].text(value.number);
    case Value::Kind::line_string:
      return sections_[".debug_line_str"].text(value.number);
    case Value::Kind::string_index: {
      const auto offset = sections_[".debug_str_offsets"].number(
          string_offsets_base_ + value.number * header_.offset_size(), header_.offset_size());
      return offset ? sections_[".debug_str"].text(*offset) : std::string();
    }
    default:
      return {};
  }
}

std::optional<Address> Unit::indexed_address(std::uint64_t index) const {
  return sections_[".debug_addr"].number(address_base_ + index * sizeof(Address), sizeof(Address));
}

std::optional<Address> Unit::address(const Value& value) const {
  if (value.kind == Value::Kind::address) return value.number;
  return value.kind == Value::Kind::address_index ? indexed_address(value.number) : std::nullopt;
}

std::vector<Range> Unit::ranges(const Entry& entry) const {
  std::vector<Range> ranges;
  if (entry.ranges.kind == Value::Kind::number) {
    if (header_.version < 5) {
      range_list(entry.ranges.number, ranges);
    } else {
      range_list_5(entry.ranges.number, ranges);
    }
  } else if (entry.ranges.kind == Value::Kind::range_index) {
    const auto offset = sections_[".debug_rnglists"].number(
        range_lists_base_ + entry.ranges.number * header_.offset_size(), header_.offset_size());
    if (offset) range_list_5(range_lists_base_ + *offset, ranges);
  } else if (const auto low = address(entry.low_pc)) {
    const auto high = entry.high_pc.kind == Value::Kind::number ? std::optional(*low + entry.high_pc.number)
                                                                : address(entry.high_pc);
    if (high) ranges.push_back({*low, *high});
  }
  // Code that the linker has dropped lies at 0, or at the end of the address space.
  std::erase_if(ranges, [](const Range& range) { return range.begin == 0 || range.end <= range.begin; });
  return ranges;
}

// .debug_ranges: pairs of addresses, relative to a base that (all ones, base) sets.
void Unit::range_list(std::uint64_t offset, std::vector<Range>& ranges) const {
  const Section& section = sections_[".debug_ranges"];
  Address base = base_;
  for (std::size_t count = 0; count < max_ranges; ++count, offset += 2 * sizeof(Address)) {
    const auto begin = section.number(offset, sizeof(Address));
    const auto end = section.number(offset + sizeof(Address), sizeof(Address));
    if (!begin || !end || (*begin == 0 && *end == 0)) return;
    if (*begin == ~Address{0}) {
      base = *end;
    } else {
      ranges.push_back({base + *begin, base + *end});
    }
  }
}

// .debug_rnglists (DWARF 5, section 7.25).
void Unit::range_list_5(std::uint64_t offset, std::vector<Range>& ranges) const {
  const Section& section = sections_[".debug_rnglists"];
  if (offset >= section.size()) return;
  constexpr std::uint64_t most = 1 << 20;
  std::uint64_t size = 256;
  Address base = base_;
  for (;;) {
    const auto bytes = section.read(offset, std::min(size, section.size() - offset));
    if (!bytes) return;
    elf::Cursor cursor(*bytes);
    const std::size_t before = ranges.size();
    const Address base_before = base;
    const auto add = [&](std::optional<Address> begin, std::optional<Address> end) {
      if (begin && end && cursor.ok()) ranges.push_back({*begin, *end});
    };
    for (bool more = true; more && cursor.ok() && ranges.size() < max_ranges;) {
      switch (cursor.value<std::uint8_t>()) {
        case 1:  // base_addressx
          base = indexed_address(cursor.uleb()).value_or(0);
          break;
        case 2: {  // startx_endx
          const auto begin = indexed_address(cursor.uleb());
          add(begin, indexed_address(cursor.uleb()));
          break;
        }
        case 3: {  // startx_length
          const auto begin = indexed_address(cursor.uleb());
          const std::uint64_t length = cursor.uleb();
          if (begin) add(begin, *begin + length);
          break;
        }
        case 4: {  // offset_pair
          const std::uint64_t begin = cursor.uleb();
          add(base + begin, base + cursor.uleb());
          break;
        }
        case 5:  // base_address
          base = cursor.value<std::uint64_t>();
          break;
        case 6: {  // start_end
          const auto begin = cursor.value<std::uint64_t>();
          add(begin, cursor.value<std::uint64_t>());
          break;
        }
        case 7: {  // start_length
          const auto begin = cursor.value<std::uint64_t>();
          add(begin, begin + cursor.uleb());
          break;
        }
        default:  // 0: the end
          more = false;
          break;
      }
    }
    if (cursor.ok() || size >= most || size >= section.size() - offset) return;
    ranges.resize(before);
    base = base_before;
    size *= 16;
  }
}

}  // namespace hangtrace::dwarf
