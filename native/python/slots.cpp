#include "python/slots.hpp"

#include <array>
#include <vector>

namespace hangtrace::python {
namespace {

constexpr int kMaxBases = 64;
constexpr std::size_t kMaxMembers = 256;
constexpr std::int64_t kMaxOffset = 1 << 16;

// PyTypeObject (Include/cpython/object.h), counted from tp_flags: tp_doc, traverse, clear, richcompare,
// weaklistoffset, iter, iternext, methods, members, getset, base. The same since Python 3.
constexpr int kMembersAfterFlags = 72;
constexpr int kBaseAfterFlags = 88;

// Include/structmember.h (3.12: descrobject.h).
constexpr std::int32_t kObject = 6;     // T_OBJECT
constexpr std::int32_t kObjectEx = 16;  // T_OBJECT_EX

struct MemberDef {  // PyMemberDef
  Address name = 0;
  std::int32_t type = 0;
  std::int64_t offset = 0;
  std::int64_t flags = 0;
  Address doc = 0;
};
static_assert(sizeof(MemberDef) == 40);

}  // namespace

std::optional<Address> Slots::base(Address type) const {
  const int offset = objects_.layout().type_flags + kBaseAfterFlags;
  const auto found = objects_.reader().read_value<Address>(type + static_cast<Address>(offset));
  return found && plausible(*found) ? found : std::nullopt;
}

bool Slots::inherits(Address type, Address wanted) const {
  std::optional<Address> next = type;
  for (int i = 0; i < kMaxBases && next; ++i) {
    if (*next == wanted) return true;
    next = base(*next);
  }
  return false;
}

std::optional<std::uint32_t> Slots::offset(Address type, std::string_view name) const {
  const memory::Reader& reader = objects_.reader();
  std::optional<Address> next = type;
  for (int i = 0; i < kMaxBases && next; ++i) {
    const int place = objects_.layout().type_flags + kMembersAfterFlags;
    Address member = reader.read_value<Address>(*next + static_cast<Address>(place)).value_or(0);
    for (std::size_t k = 0; k < kMaxMembers && plausible(member); ++k, member += sizeof(MemberDef)) {
      const auto definition = reader.read_value<MemberDef>(member);
      if (!definition || definition->name == 0) break;
      if (definition->type != kObject && definition->type != kObjectEx) continue;
      if (definition->offset < 16 || definition->offset > kMaxOffset || definition->offset % 8 != 0) continue;
      if (reader.read_cstring(definition->name, name.size() + 1) != name) continue;
      return static_cast<std::uint32_t>(definition->offset);
    }
    next = base(*next);
  }
  return std::nullopt;
}

std::optional<Address> Slots::find(Address object, std::string_view name) {
  const auto type = objects_.type_of(object);
  if (!type || objects_.type(*type) == nullptr) return std::nullopt;
  auto [known, fresh] = offsets_.try_emplace({*type, std::string(name)});
  if (fresh) known->second = offset(*type, name);
  if (!known->second) return std::nullopt;
  const auto value = objects_.reader().read_value<Address>(object + *known->second);
  return value && plausible(*value) ? value : std::nullopt;
}

}  // namespace hangtrace::python
