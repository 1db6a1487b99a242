#include "dwarf/structures.hpp"

#include <algorithm>

#include "dwarf/constants.hpp"
#include "dwarf/sections.hpp"
#include "dwarf/unit.hpp"

namespace hangtrace::dwarf {

namespace {

constexpr std::size_t max_members = 4096;
constexpr std::uint64_t max_structure = 1 << 30;

bool matches(std::string_view name, std::string_view wanted) {
  if (!wanted.ends_with('*')) return name == wanted;
  wanted.remove_suffix(1);
  return name.starts_with(wanted);
}

// The attributes that matter here, of one entry.
struct TypeEntry {
  std::uint64_t tag = 0;  // 0: the end of a list of children
  bool has_children = false;
  Value name;
  std::optional<std::uint64_t> size, location, bit_size, bit_offset, data_bit_offset, sibling;
};

void number(const Value& value, std::optional<std::uint64_t>& into) {
  if (value.kind == Value::Kind::number) into = value.number;
}

class UnitSearch {
 public:
  UnitSearch(const Unit& unit, std::span<const std::string_view> names, Structures& result)
      : unit_(unit), names_(names), result_(result), cursor_(unit.entries()) {}

  // False: it is broken, and what follows cannot be found.
  bool run() {
    TypeEntry root;
    if (!read(root) || !root.has_children) return cursor_.ok();
    while (cursor_.ok() && !cursor_.at_end()) {
      TypeEntry entry;
      if (!read(entry)) return false;
      if (entry.tag == 0) return true;
      if (is_wanted(entry)) {
        if (!read_members(entry)) return false;
      } else if (entry.has_children && !skip_children(entry)) {
        return false;
      }
    }
    return cursor_.ok();
  }

 private:
  bool read(TypeEntry& entry) {
    const std::uint64_t code = cursor_.uleb();
    if (!cursor_.ok()) return false;
    if (code == 0) return true;
    const Abbreviation* const shape = unit_.abbreviation(code);
    if (shape == nullptr) return false;
    entry.tag = shape->tag;
    entry.has_children = shape->has_children;
    for (const AttributeSpec& spec : shape->attributes) {
      const Value value = read_value(cursor_, spec, unit_.header());
      switch (spec.name) {
        case attribute::name:
          entry.name = value;
          break;
        case attribute::byte_size:
          number(value, entry.size);
          break;
        case attribute::data_member_location:
          number(value, entry.location);
          break;
        case attribute::bit_size:
          number(value, entry.bit_size);
          break;
        case attribute::bit_offset:
          number(value, entry.bit_offset);
          break;
        case attribute::data_bit_offset:
          number(value, entry.data_bit_offset);
          break;
        case attribute::sibling:
          if (value.kind == Value::Kind::reference) entry.sibling = value.number;
          break;
        default:
          break;
      }
    }
    return cursor_.ok();
  }

  bool is_wanted(const TypeEntry& entry) const {
    if (entry.tag != tag::structure_type && entry.tag != tag::class_type) return false;
    if (!entry.size || *entry.size > max_structure || !entry.has_children) return false;
    const std::string name = unit_.text(entry.name);
    return !name.empty() && !result_.found.contains(name) &&
           std::ranges::any_of(names_, [&name](std::string_view wanted) { return matches(name, wanted); });
  }

  bool skip_children(const TypeEntry& entry) {
    if (entry.sibling) {
      const std::uint64_t position = *entry.sibling - unit_.header().offset;
      // Backwards there would be no end.
      if (*entry.sibling < unit_.header().offset || position < cursor_.position()) return false;
      cursor_.seek(position);
      return cursor_.ok();
    }
    for (std::size_t depth = 1; depth != 0;) {
      TypeEntry child;
      if (!read(child)) return false;
      if (child.tag == 0) {
        --depth;
      } else if (child.has_children) {
        ++depth;
      }
    }
    return true;
  }

  bool read_members(const TypeEntry& entry) {
    Structure structure{*entry.size, {}};
    for (;;) {
      TypeEntry child;
      if (!read(child)) return false;
      if (child.tag == 0) break;
      if (child.tag == tag::member && structure.members.size() < max_members) add(child, structure);
      if (child.has_children && !skip_children(child)) return false;
    }
    result_.found.emplace(unit_.text(entry.name), std::move(structure));
    return true;
  }

  void add(const TypeEntry& member, Structure& structure) const {
    std::optional<std::uint64_t> offset = member.location;
    if (member.bit_size) {
      if (*member.bit_size == 0 || *member.bit_size % 8 != 0 || *member.bit_size > 64) return;
      if (member.data_bit_offset && *member.data_bit_offset % 8 == 0) {  // since DWARF 4
        offset = *member.data_bit_offset / 8;
      } else if (member.bit_offset && member.size && offset) {
        // Before that, counted from the most significant bit of a number of `size` bytes.
        const std::uint64_t bits = *member.bit_offset + *member.bit_size;
        if (*member.size > 8 || bits > *member.size * 8 || bits % 8 != 0) return;
        *offset += (*member.size * 8 - bits) / 8;
      } else {
        return;
      }
    }
    const std::string name = unit_.text(member.name);
    if (!name.empty() && offset && *offset < structure.size) structure.members.emplace(name, *offset);
  }

  const Unit& unit_;
  std::span<const std::string_view> names_;
  Structures& result_;
  elf::Cursor cursor_;
};

}  // namespace

std::optional<std::uint64_t> Structure::offset(std::string_view member) const {
  const auto found = members.find(member);
  return found == members.end() ? std::nullopt : std::optional(found->second);
}

Structures find_structures(const elf::Module& module, std::span<const std::string_view> names,
                           std::size_t most_units, std::chrono::steady_clock::time_point deadline) {
  Structures result;
  Sections sections(module);
  const Section& info = sections[".debug_info"];
  if (info.size() == 0) {
    result.problem = info.problem().empty() ? "no debug information" : info.problem();
    return result;
  }
  std::size_t units_left = most_units;
  for (std::uint64_t offset = 0; units_left != 0 && result.found.size() < names.size();) {
    const auto header = read_unit_header(info, offset);
    if (!header || header->end <= offset) break;
    offset = header->end;
    if (std::chrono::steady_clock::now() >= deadline) {
      result.problem = "its debug information could not be read in time";
      break;
    }
    const auto unit = Unit::load(sections, *header, Unit::Extent::whole);
    if (unit == nullptr) continue;
    if (!UnitSearch(*unit, names, result).run()) result.problem = "its debug information is broken";
    if (!result.found.empty()) --units_left;
  }
  return result;
}

}  // namespace hangtrace::dwarf
