#include "python/values.hpp"

#include <algorithm>
#include <array>

namespace hangtrace::python {
namespace {

constexpr int kMaxDepth = 3;
constexpr int kMaxBases = 64;

// Bits of tp_flags (Include/object.h).
constexpr std::uint64_t kIntSubclass = 1 << 24;
constexpr std::uint64_t kListSubclass = 1 << 25;
constexpr std::uint64_t kTupleSubclass = 1 << 26;
constexpr std::uint64_t kBytesSubclass = 1 << 27;
constexpr std::uint64_t kStrSubclass = 1 << 28;
constexpr std::uint64_t kDictSubclass = 1 << 29;

// pybind11/detail/common.h, struct instance after the object header: a union of simple_value_holder[3]
// {value, holder} and a pointer to such values, weakrefs, then bits owned, simple_layout, ... Unchanged
// since 2.2.
constexpr int kFlags = 4;  // words after the header
constexpr std::uint8_t kSimpleLayout = 2;

// Modules/_queuemodule.c, words after the header:
//   up to 3.12  {PyThread_type_lock lock, int locked, PyObject *lst, Py_ssize_t lst_pos, ...}
//   since 3.13  {bool has_threads_waiting, RingBuf {put_idx, get_idx, PyObject **items, items_cap,
//   num_items}, ...}
constexpr int kQueueList = 2;
constexpr int kQueueWords = 6;

constexpr std::size_t kMaxTable = 1 << 16;  // places of a ring

}  // namespace

Value ValueReader::read(Address object) {
  budget_ = limits_.values;
  return read(object, 0);
}

Value ValueReader::read(Address object, int depth) {
  Value value;
  value.address = object;
  const auto type = objects_.type_of(object);
  const TypeInfo* info = type ? objects_.type(*type) : nullptr;
  if (budget_ == 0 || info == nullptr) return value;
  --budget_;
  value.type_name = info->name;
  const std::uint64_t flags = info->flags;
  if (value.type_name == "NoneType") {
    value.kind = ValueKind::none;
  } else if (flags & kIntSubclass) {
    if (const auto number = objects_.integers(std::span(&object, 1)).front()) {
      value.kind = value.type_name == "bool" ? ValueKind::boolean : ValueKind::integer;
      value.integer = *number;
    }
  } else if (flags & kStrSubclass) {
    if (auto text = objects_.text(object)) {
      value.kind = ValueKind::text;
      value.text = std::move(*text);
    }
  } else if (value.type_name == "float") {
    const auto number =
        objects_.reader().read_value<double>(object + static_cast<Address>(objects_.layout().float_value));
    if (number) {
      value.kind = ValueKind::real;
      value.real = *number;
    }
  } else if (flags & kBytesSubclass) {
    const auto length = objects_.reader().read_value<std::int64_t>(
        object + static_cast<Address>(objects_.layout().bytes_size));
    if (length && *length >= 0) {
      value.kind = ValueKind::bytes;
      value.length = static_cast<std::size_t>(*length);
    }
  } else if (flags & kListSubclass) {
    value.kind = ValueKind::list;
    add_items(value, objects_.list(object), depth);
  } else if (flags & kTupleSubclass) {
    value.kind = ValueKind::tuple;
    add_items(value, objects_.tuple(object), depth);
  } else if (flags & kDictSubclass) {
    value.kind = ValueKind::dict;
    std::vector<Address> items;
    for (const auto& [key, content] : objects_.dict(object)) {
      items.push_back(key);
      items.push_back(content);
    }
    add_items(value, items, depth);
    value.length = items.size() / 2;
  } else if (value.type_name == "collections.deque") {  // PyObject_VAR_HEAD
    const auto length = objects_.reader().read_value<std::int64_t>(
        object + static_cast<Address>(objects_.layout().after_header(0)));
    if (length && *length >= 0) {
      value.kind = ValueKind::deque;
      value.length = static_cast<std::size_t>(*length);
    }
  } else {
    value.held = held(object, *type);
  }
  return value;
}

std::vector<Address> ValueReader::simple_queue(Address object) const {
  const Layout& layout = objects_.layout();
  std::array<Address, kQueueWords> words{};
  if (!objects_.reader().read(object + static_cast<Address>(layout.after_header(0)),
                              std::as_writable_bytes(std::span(words)))) {
    return {};
  }
  if (layout.minor < 13) {
    std::vector<Address> items = objects_.list(words[kQueueList]);
    const Address taken = std::min<Address>(words[kQueueList + 1], items.size());
    items.erase(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(taken));
    return items;
  }
  const auto [waiting, put, get, from, capacity, count] = words;
  if (capacity == 0 || capacity > kMaxTable || get >= capacity || count > capacity) return {};
  std::vector<Address> ring(capacity);
  if (!objects_.reader().read(from, std::as_writable_bytes(std::span(ring)))) return {};
  std::vector<Address> items;
  for (Address i = 0; i < count; ++i) items.push_back(ring[(get + i) % capacity]);
  return items;
}

std::optional<std::vector<Address>> ValueReader::members(Address container) {
  const TypeInfo* info = objects_.type_info_of(container);
  if (info == nullptr) return std::nullopt;
  if (info->flags & kListSubclass) return objects_.list(container);
  if (info->flags & kTupleSubclass) return objects_.tuple(container);
  if (info->flags & kDictSubclass) {
    std::vector<Address> values;
    for (const auto& [key, value] : objects_.dict(container)) values.push_back(value);
    return values;
  }
  if (info->name == "set" || info->name == "frozenset") return objects_.set(container);
  if (info->name == "_queue.SimpleQueue") return simple_queue(container);
  return std::nullopt;
}

Value ValueReader::each(Address container, std::string_view dotted) {
  budget_ = limits_.values;
  Value value;
  value.address = container;
  value.type_name = objects_.type_name_of(container);
  const auto found = members(container);
  if (!found) return value;
  value.kind = ValueKind::list;
  value.length = found->size();
  for (const Address member : std::span(*found).first(std::min(found->size(), kMaxMembers))) {
    if (!plausible(member)) continue;
    if (const auto end = follow(member, dotted)) value.items.push_back(read(*end, kMaxDepth));
  }
  return value;
}

void ValueReader::add_items(Value& value, const std::vector<Address>& items, int depth) {
  value.length = items.size();
  const std::size_t most = value.kind == ValueKind::dict ? 2 * limits_.items : limits_.items;
  if (depth >= kMaxDepth || items.size() > most || items.size() > budget_) return;
  for (Address item : items) value.items.push_back(read(item, depth + 1));
}

// Every type of pybind11 inherits from one that it names so, which has the plain structure and nothing more.
std::optional<Address> ValueReader::held(Address object, Address type) {
  const Layout& layout = objects_.layout();
  std::optional<Address> next = type;
  for (int i = 0; i < kMaxBases; ++i) {
    const TypeInfo* info = next ? objects_.type(*next) : nullptr;
    if (info == nullptr) return std::nullopt;
    if (info->name == "pybind11_object" || info->name.ends_with(".pybind11_object")) break;
    next = slots_.base(*next);
    if (i + 1 == kMaxBases) return std::nullopt;
  }
  std::array<Address, 5> words{};
  if (!objects_.reader().read(object + static_cast<Address>(layout.after_header(0)),
                              std::as_writable_bytes(std::span(words)))) {
    return std::nullopt;
  }
  if ((words[kFlags] & kSimpleLayout) != 0) {
    return words[0] != 0 ? std::optional(words[0]) : std::nullopt;
  }
  // Several C++ bases: pointers to each, the first one's in front.
  const auto first = plausible(words[0]) ? objects_.reader().read_value<Address>(words[0]) : std::nullopt;
  return first && *first != 0 ? first : std::nullopt;
}

std::optional<Address> ValueReader::follow(Address object, std::string_view dotted) {
  while (!dotted.empty()) {
    const std::size_t dot = std::min(dotted.find('.'), dotted.size());
    const std::string_view name = dotted.substr(0, dot);
    dotted.remove_prefix(std::min(dot + 1, dotted.size()));
    auto next = objects_.attribute(object, name);
    if (!next) next = slots_.find(object, name);
    if (!next) return std::nullopt;
    object = *next;
  }
  return object;
}

}  // namespace hangtrace::python
