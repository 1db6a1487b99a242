#include "bpf/btf.hpp"

#include <algorithm>
#include <cstring>

namespace hangtrace::bpf {

namespace {

constexpr std::uint16_t magic = 0xeb9f;
constexpr std::size_t type_size = 12;    // struct btf_type
constexpr std::size_t member_size = 12;  // struct btf_member
constexpr std::size_t most_types = 8 << 20;
constexpr int deepest = 16;  // of unnamed members, typedefs and qualifiers

enum Kind : unsigned {  // BTF_KIND_*
  kind_int = 1,
  kind_pointer = 2,
  kind_array = 3,
  kind_struct = 4,
  kind_union = 5,
  kind_enum = 6,
  kind_forward = 7,
  kind_typedef = 8,
  kind_volatile = 9,
  kind_const = 10,
  kind_restrict = 11,
  kind_function = 12,
  kind_prototype = 13,
  kind_variable = 14,
  kind_section = 15,
  kind_float = 16,
  kind_declaration_tag = 17,
  kind_type_tag = 18,
  kind_enum64 = 19,
};

template <class T>
std::optional<T> load(std::span<const std::byte> bytes, std::size_t offset) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) {
    return std::nullopt;
  }
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// Bytes behind a struct btf_type; nullopt for a kind that is not known.
std::optional<std::size_t> trailing_size(unsigned kind, std::size_t count) {
  switch (kind) {
    case kind_pointer:
    case kind_forward:
    case kind_typedef:
    case kind_volatile:
    case kind_const:
    case kind_restrict:
    case kind_function:
    case kind_float:
    case kind_type_tag:
      return 0;
    case kind_int:
    case kind_variable:
    case kind_declaration_tag:
      return 4;
    case kind_array:
      return 12;
    case kind_enum:
    case kind_prototype:
      return 8 * count;
    case kind_struct:
    case kind_union:
    case kind_section:
    case kind_enum64:
      return 12 * count;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<Btf> Btf::parse(std::span<const std::byte> bytes) {
  const auto mark = load<std::uint16_t>(bytes, 0);
  // struct btf_header: hdr_len, type_off, type_len, str_off, str_len after magic, version and flags.
  const auto fields = load<std::array<std::uint32_t, 5>>(bytes, 4);
  if (!mark || *mark != magic || !fields) {
    return std::nullopt;
  }
  const auto [header_size, type_begin, types_size, string_begin, strings_size] = *fields;
  if (header_size > bytes.size()) {
    return std::nullopt;
  }
  Btf btf;
  btf.sections_ = bytes.subspan(header_size);
  const std::size_t available = btf.sections_.size();
  if (type_begin > available || types_size > available - type_begin || string_begin > available ||
      strings_size > available - string_begin) {
    return std::nullopt;
  }
  btf.strings_ = btf.sections_.subspan(string_begin, strings_size);
  btf.types_.reserve(std::min<std::size_t>(types_size / type_size / 2, most_types));
  btf.types_.push_back(0);
  const std::size_t end = std::size_t{type_begin} + types_size;
  std::size_t at = type_begin;
  while (at < end) {
    const auto info = load<std::uint32_t>(btf.sections_, at + 4);
    if (!info || end - at < type_size || btf.types_.size() >= most_types) {
      return std::nullopt;
    }
    const Header header{0, *info, 0};
    const auto trailing = trailing_size(header.kind(), header.count());
    if (!trailing || *trailing > end - at - type_size) {
      return std::nullopt;
    }
    btf.types_.push_back(static_cast<std::uint32_t>(at));
    at += type_size + *trailing;
  }
  return btf;
}

std::optional<Btf::Header> Btf::header(TypeId type) const {
  if (type == 0 || type >= types_.size()) {
    return std::nullopt;
  }
  return load<Header>(sections_, types_[type]);
}

bool Btf::is_named(std::uint32_t offset, std::string_view name) const {
  if (offset >= strings_.size() || name.size() >= strings_.size() - offset) {
    return false;
  }
  const auto* const text = reinterpret_cast<const char*>(strings_.data()) + offset;
  return std::memcmp(text, name.data(), name.size()) == 0 && text[name.size()] == '\0';
}

std::optional<Btf::TypeId> Btf::find(BtfKind kind, std::string_view name) const {
  // A name stands once, or few times, among the strings: then the types need not be compared by text.
  std::vector<std::uint32_t> offsets;
  const std::string_view text(reinterpret_cast<const char*>(strings_.data()), strings_.size());
  for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    if (is_named(static_cast<std::uint32_t>(at), name)) {
      offsets.push_back(static_cast<std::uint32_t>(at));
    }
  }
  for (TypeId type = 1; type < types_.size(); ++type) {
    const auto found = header(type);
    if (found && found->kind() == static_cast<unsigned>(kind) &&
        std::ranges::find(offsets, found->name) != offsets.end()) {
      return type;
    }
  }
  return std::nullopt;
}

std::optional<Btf::TypeId> Btf::plain(TypeId type) const {
  for (int step = 0; step < deepest; ++step) {
    const auto found = header(type);
    if (!found) {
      return std::nullopt;
    }
    switch (found->kind()) {
      case kind_typedef:
      case kind_volatile:
      case kind_const:
      case kind_restrict:
      case kind_type_tag:
        type = found->size_or_type;
        break;
      default:
        return type;
    }
  }
  return std::nullopt;
}

std::optional<std::uint32_t> Btf::size(TypeId type) const {
  const auto actual = plain(type);
  const auto found = actual ? header(*actual) : std::nullopt;
  if (!found) {
    return std::nullopt;
  }
  switch (found->kind()) {
    case kind_int:
    case kind_struct:
    case kind_union:
    case kind_enum:
    case kind_enum64:
      return found->size_or_type;
    default:
      return std::nullopt;
  }
}

std::optional<Btf::Member> Btf::member(TypeId type, std::string_view name, int depth) const {
  const auto actual = plain(type);
  const auto outer = actual ? header(*actual) : std::nullopt;
  if (!outer || depth > deepest || (outer->kind() != kind_struct && outer->kind() != kind_union)) {
    return std::nullopt;
  }
  for (std::uint32_t i = 0; i < outer->count(); ++i) {
    // struct btf_member: name, type, offset in bits (with kind_flag: size of a bit field above 24 bits of
    // offset).
    const auto fields =
        load<std::array<std::uint32_t, 3>>(sections_, types_[*actual] + type_size + member_size * i);
    if (!fields) {
      return std::nullopt;
    }
    const auto [member_name, member_type, raw] = *fields;
    const bool bit_field = outer->kind_flag() && raw >> 24 != 0;
    const std::uint32_t bits = outer->kind_flag() ? raw & 0xffffff : raw;
    if (is_named(member_name, name)) {
      return bit_field || bits % 8 != 0 ? std::nullopt : std::optional(Member{bits / 8, member_type});
    }
    if (is_named(member_name, "")) {
      if (const auto inner = member(member_type, name, depth + 1)) {
        return Member{bits / 8 + inner->offset, inner->type};
      }
    }
  }
  return std::nullopt;
}

std::optional<Btf::Member> Btf::member(TypeId type, std::string_view name) const {
  return name.empty() ? std::nullopt : member(type, name, 0);
}

std::optional<Btf::Member> Btf::member(TypeId type, std::span<const std::string_view> names) const {
  Member result{0, type};
  for (const std::string_view name : names) {
    const auto found = member(result.type, name);
    if (!found) {
      return std::nullopt;
    }
    result = {result.offset + found->offset, found->type};
  }
  return result;
}

}  // namespace hangtrace::bpf
