#include "python/objects.hpp"

#include <algorithm>
#include <array>

namespace hangtrace::python {
namespace {

// Bits of tp_flags (Include/object.h), the same from 3.8 on unless said.
constexpr std::uint64_t kInlineValues = 1 << 2;  // since 3.13
constexpr std::uint64_t kManagedDict = 1 << 4;   // since 3.11
constexpr std::uint64_t kHeapType = 1 << 9;
constexpr std::uint64_t kIntSubclass = 1 << 24;
constexpr std::uint64_t kBytesSubclass = 1 << 27;
constexpr std::uint64_t kStrSubclass = 1 << 28;

constexpr std::int64_t kMaxObjectSize = 1 << 16;
constexpr std::size_t kPickBlock = 256;   // keys compared before the next ones are read
constexpr std::size_t kFirstGuess = 256;  // most strings fit in a read of this size

void append_utf8(std::string& text, std::uint32_t character) {
  if (character > 0x10ffff || (character >= 0xd800 && character < 0xe000)) character = 0xfffd;
  if (character < 0x80) {
    text += static_cast<char>(character);
  } else if (character < 0x800) {
    text += static_cast<char>(0xc0 | (character >> 6));
    text += static_cast<char>(0x80 | (character & 0x3f));
  } else if (character < 0x10000) {
    text += static_cast<char>(0xe0 | (character >> 12));
    text += static_cast<char>(0x80 | ((character >> 6) & 0x3f));
    text += static_cast<char>(0x80 | (character & 0x3f));
  } else {
    text += static_cast<char>(0xf0 | (character >> 18));
    text += static_cast<char>(0x80 | ((character >> 12) & 0x3f));
    text += static_cast<char>(0x80 | ((character >> 6) & 0x3f));
    text += static_cast<char>(0x80 | (character & 0x3f));
  }
}

std::string decode(std::span<const std::byte> data, std::size_t width, std::size_t count) {
  std::string text;
  text.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t character = 0;
    if (width == 1) {
      character = load<std::uint8_t>(data, i);
    } else if (width == 2) {
      character = load<std::uint16_t>(data, 2 * i);
    } else {
      character = load<std::uint32_t>(data, 4 * i);
    }
    append_utf8(text, character);
  }
  return text;
}

struct StringHead {
  std::size_t count = 0;  // characters that are read
  std::size_t width = 1;
  std::optional<std::size_t> inside;  // offset of the data; none: a pointer is at string_compact_data
};

std::optional<StringHead> string_head(const Layout& layout, std::span<const std::byte> object) {
  const auto length = load<std::int64_t>(object, layout.string_length);
  const auto state = load<std::uint32_t>(object, layout.string_state) >> layout.string_kind_shift;
  const std::uint32_t kind = state & 7;
  const bool compact = (state & 8) != 0;
  const bool ascii = (state & 16) != 0;
  if (length < 0 || length > (std::int64_t{1} << 40)) return std::nullopt;
  if (kind != 1 && kind != 2 && kind != 4) return std::nullopt;
  if (ascii && kind != 1) return std::nullopt;
  StringHead head;
  head.count = static_cast<std::size_t>(std::min<std::int64_t>(length, Objects::kMaxText));
  head.width = kind;
  if (compact) {
    head.inside = static_cast<std::size_t>(ascii ? layout.string_ascii_data : layout.string_compact_data);
  }
  return head;
}

}  // namespace

std::optional<Address> Objects::word(Address object, int index) const {
  if (!plausible(object)) return std::nullopt;
  return reader_.read_value<Address>(object + static_cast<Address>(layout_.after_header(index)));
}

std::optional<Address> Objects::type_of(Address object) const {
  if (!plausible(object)) return std::nullopt;
  auto type = reader_.read_value<Address>(object + layout_.object_type);
  if (!type || !plausible(*type)) return std::nullopt;
  return type;
}

void Objects::touch(std::span<const Address> objects) const {
  constexpr std::size_t kHead = 64;
  std::vector<std::byte> heads(objects.size() * kHead);
  Batch batch(reader_);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    batch.add(plausible(objects[i]) ? objects[i] : 0, std::span(heads).subspan(i * kHead, kHead));
  }
  batch.read();
}

const TypeInfo* Objects::type(Address type_object) {
  if (!plausible(type_object)) return nullptr;
  if (auto known = types_.find(type_object); known != types_.end()) {
    return known->second ? &*known->second : nullptr;
  }
  std::optional<TypeInfo>& slot = types_[type_object];
  std::vector<std::byte> body(static_cast<std::size_t>(layout_.type_size));
  if (!reader_.read(type_object, body)) return nullptr;
  auto name = reader_.read_cstring(load<Address>(body, layout_.type_name), 200);
  if (!name || name->empty()) return nullptr;
  TypeInfo info;
  info.name = *name;
  info.flags = load<std::uint64_t>(body, layout_.type_flags);
  if (layout_.type_basic_size >= 0) info.basic_size = load<std::int64_t>(body, layout_.type_basic_size);
  if (layout_.type_dict_offset >= 0) info.dict_offset = load<std::int64_t>(body, layout_.type_dict_offset);
  if ((info.flags & kHeapType) && layout_.type_cached_keys >= 0) {
    info.cached_keys = reader_.read_value<Address>(type_object + layout_.type_cached_keys).value_or(0);
  }
  slot = std::move(info);
  return &*slot;
}

const TypeInfo* Objects::type_info_of(Address object) {
  auto found = type_of(object);
  return found ? type(*found) : nullptr;
}

std::string Objects::type_name_of(Address object) {
  const TypeInfo* info = type_info_of(object);
  return info ? info->name : std::string();
}

std::vector<std::optional<std::string>> Objects::texts(std::span<const Address> objects) const {
  std::vector<std::optional<std::string>> result(objects.size());
  const std::size_t smallest = static_cast<std::size_t>(layout_.string_compact_data) + 8;
  std::vector<std::byte> heads(objects.size() * kFirstGuess);
  auto head_of = [&](std::size_t i) { return std::span(heads).subspan(i * kFirstGuess, kFirstGuess); };
  Batch batch(reader_);
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (!plausible(objects[i])) continue;
    wanted.push_back(i);
    batch.add(objects[i], head_of(i));
  }
  std::vector<bool> done = batch.read();
  // A string at the end of a mapping cannot be read with the full guess: read its head alone.
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    const std::size_t i = wanted[k];
    auto head = head_of(i);
    bool whole = done[k];
    if (!whole) {
      if (!reader_.read(objects[i], head.first(smallest)) &&
          !reader_.read(objects[i], head.first(static_cast<std::size_t>(layout_.string_ascii_data)))) {
        continue;
      }
    }
    auto parsed = string_head(layout_, head);
    if (!parsed) continue;
    const std::size_t size = parsed->count * parsed->width;
    if (parsed->inside && whole && *parsed->inside + size <= kFirstGuess) {
      result[i] = decode(head.subspan(*parsed->inside), parsed->width, parsed->count);
      continue;
    }
    const Address from =
        parsed->inside ? objects[i] + *parsed->inside : load<Address>(head, layout_.string_compact_data);
    std::vector<std::byte> data(size);
    if (size == 0 || reader_.read(from, data)) result[i] = decode(data, parsed->width, parsed->count);
  }
  return result;
}

std::optional<std::string> Objects::text(Address object) const {
  return std::move(texts(std::span(&object, 1)).front());
}

bool Objects::is_ascii(Address object, std::string_view text) const {
  const auto data_at = static_cast<std::size_t>(layout_.string_ascii_data);
  std::vector<std::byte> bytes(data_at + text.size());
  // The head first: behind a shorter string there may be nothing.
  if (!plausible(object) || !reader_.read(object, std::span(bytes).first(data_at))) return false;
  const auto head = string_head(layout_, bytes);
  if (!head || head->width != 1 || head->inside != data_at || head->count != text.size()) return false;
  if (!reader_.read(object + data_at, std::span(bytes).subspan(data_at))) return false;
  return std::memcmp(bytes.data() + data_at, text.data(), text.size()) == 0;
}

std::optional<std::string> Objects::bytes(Address object, std::size_t max) const {
  if (!plausible(object)) return std::nullopt;
  auto size = reader_.read_value<std::int64_t>(object + layout_.bytes_size);
  if (!size || *size < 0 || *size > (std::int64_t{1} << 40)) return std::nullopt;
  std::string data(std::min<std::size_t>(static_cast<std::size_t>(*size), max), '\0');
  if (!data.empty() && !reader_.read(object + layout_.bytes_data, std::as_writable_bytes(std::span(data)))) {
    return std::nullopt;
  }
  return data;
}

std::vector<Address> Objects::words(Address from, std::size_t count) const {
  std::vector<Address> result(count);
  if (count > 0 && (!plausible(from) || !reader_.read(from, std::as_writable_bytes(std::span(result))))) {
    result.clear();
  }
  return result;
}

std::vector<Address> Objects::tuple(Address object) const {
  if (!plausible(object)) return {};
  auto size = reader_.read_value<std::int64_t>(object + layout_.tuple_size);
  if (!size || *size < 0 || *size > static_cast<std::int64_t>(kMaxEntries)) return {};
  return words(object + layout_.tuple_items, static_cast<std::size_t>(*size));
}

std::vector<Address> Objects::list(Address object) const {
  if (!plausible(object)) return {};
  auto size = reader_.read_value<std::int64_t>(object + layout_.list_size);
  auto items = reader_.read_value<Address>(object + layout_.list_items);
  if (!size || !items || *size < 0 || *size > static_cast<std::int64_t>(kMaxEntries)) return {};
  return words(*items, static_cast<std::size_t>(*size));
}

// Objects/setobject.c: {head, fill, used, mask, setentry *table, ...}, setentry {key, hash}.
std::vector<Address> Objects::set(Address object) const {
  constexpr std::uint64_t kMaxSlots = 1 << 18;
  std::array<Address, 4> head{};
  if (!plausible(object) || !reader_.read(object + static_cast<Address>(layout_.after_header(0)),
                                          std::as_writable_bytes(std::span(head)))) {
    return {};
  }
  const auto [fill, used, mask, table] = head;
  if (used == 0 || used > fill || fill > mask + 1 || mask >= kMaxSlots || !plausible(table)) return {};
  std::vector<std::array<Address, 2>> entries(mask + 1);
  if (!reader_.read(table, std::as_writable_bytes(std::span(entries)))) return {};
  std::vector<Address> keys;
  for (const auto& [key, hash] : entries) {
    // What was removed leaves a dummy with the hash -1.
    if (plausible(key) && hash != ~Address{0}) keys.push_back(key);
  }
  return keys;
}

// Modules/_collectionsmodule.c: {head, ob_size, leftblock, rightblock, leftindex, ...}, blocks {leftlink, 64
// items, rightlink}.
std::vector<Address> Objects::deque(Address object, std::size_t most) const {
  constexpr std::size_t kBlock = 64;
  std::array<Address, 4> head{};
  if (!plausible(object) || !reader_.read(object + static_cast<Address>(layout_.after_header(0)),
                                          std::as_writable_bytes(std::span(head)))) {
    return {};
  }
  auto [size, block, last, index] = head;
  std::vector<Address> items;
  while (items.size() < std::min<std::size_t>(size, most)) {
    std::array<Address, kBlock + 2> content{};
    if (index >= kBlock || !plausible(block) ||
        !reader_.read(block, std::as_writable_bytes(std::span(content)))) {
      break;
    }
    for (; index < kBlock && items.size() < std::min<std::size_t>(size, most); ++index) {
      items.push_back(content[index + 1]);
    }
    index = 0;
    block = content[kBlock + 1];
  }
  return items;
}

std::vector<Objects::Item> Objects::table(Address keys) const {
  const auto head = table_head(keys);
  if (!head || head->count == 0) return {};
  const std::vector<Address> raw = words(head->entries, head->count * head->entry_words);
  if (raw.empty()) return {};
  std::vector<Item> result;
  result.reserve(head->count);
  for (std::size_t i = 0; i < head->count; ++i) {
    result.emplace_back(raw[(i + 1) * head->entry_words - 2], raw[(i + 1) * head->entry_words - 1]);
  }
  return result;
}

std::optional<Objects::Storage> Objects::dict_storage(Address object) const {
  if (!plausible(object)) return std::nullopt;
  Storage storage;
  Batch batch(reader_);
  batch.add(object + layout_.dict_keys, std::as_writable_bytes(std::span(&storage.keys, 1)));
  batch.add(object + layout_.dict_values, std::as_writable_bytes(std::span(&storage.values, 1)));
  const std::vector<bool> done = batch.read();
  if (!done[0] || !done[1]) return std::nullopt;
  return storage;
}

std::vector<Objects::Item> Objects::items(const Storage& storage) const {
  std::vector<Item> result = table(storage.keys);
  if (storage.values != 0) {
    const std::vector<Address> split =
        words(storage.values + layout_.values_first, std::min(result.size(), storage.capacity));
    for (std::size_t i = 0; i < result.size(); ++i) result[i].second = i < split.size() ? split[i] : 0;
  }
  std::erase_if(result, [](const Item& item) { return item.first == 0 || item.second == 0; });
  return result;
}

std::vector<Objects::Item> Objects::dict(Address object) const {
  auto storage = dict_storage(object);
  return storage ? items(*storage) : std::vector<Item>();
}

std::vector<std::optional<Address>> Objects::pick(std::span<const Item> entries,
                                                  std::span<const std::string_view> keys) const {
  std::vector<std::optional<Address>> result(keys.size());
  std::size_t longest = 0;
  for (std::string_view key : keys) longest = std::max(longest, key.size());
  const auto data_at = static_cast<std::size_t>(layout_.string_ascii_data);
  const std::size_t size = data_at + longest;
  std::vector<std::byte> heads(kPickBlock * size);
  std::size_t found = 0;
  for (std::size_t start = 0; start < entries.size() && found < keys.size(); start += kPickBlock) {
    auto block = entries.subspan(start, std::min(kPickBlock, entries.size() - start));
    auto head_of = [&](std::size_t i) { return std::span(heads).subspan(i * size, size); };
    Batch batch(reader_);
    for (std::size_t i = 0; i < block.size(); ++i) batch.add(block[i].first, head_of(i));
    const std::vector<bool> done = batch.read();
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (!plausible(block[i].first)) continue;
      auto head = head_of(i);
      // A short key at the end of a mapping cannot be read with the size of the longest one.
      if (!done[i] && !reader_.read(block[i].first, head.first(data_at))) continue;
      auto parsed = string_head(layout_, head);
      if (!parsed || parsed->width != 1 || parsed->inside != data_at || parsed->count > longest) continue;
      if (!done[i] && !reader_.read(block[i].first, head.first(data_at + parsed->count))) continue;
      const std::string_view text(reinterpret_cast<const char*>(head.data() + data_at), parsed->count);
      for (std::size_t k = 0; k < keys.size(); ++k) {
        if (result[k] || keys[k] != text) continue;
        result[k] = block[i].second;
        ++found;
      }
    }
  }
  return result;
}

std::optional<Objects::Storage> Objects::instance_storage(Address object) {
  const TypeInfo* info = type_info_of(object);
  if (info == nullptr) return std::nullopt;
  Storage inline_values{.keys = info->cached_keys};
  Address dictionary = 0;
  if (layout_.minor >= 11 && (info->flags & kManagedDict)) {
    // Include/internal/pycore_object.h. 3.11: values and dict at four and three words before the
    // object. 3.12: one word, odd if it is values. Since 3.13: a dict or nothing, and values behind the
    // object's own fields.
    if (layout_.minor == 11) {
      std::array<Address, 2> before{};
      if (!reader_.read(object - 32, std::as_writable_bytes(std::span(before)))) return std::nullopt;
      inline_values.values = before[0];
      dictionary = before[1];
    } else {
      dictionary = reader_.read_value<Address>(object - (layout_.free_threaded ? 8 : 24)).value_or(0);
      if (layout_.minor == 12 && (dictionary & 1)) {
        inline_values.values = dictionary + 1;
        dictionary = 0;
      } else if (layout_.minor >= 13 && dictionary == 0 && (info->flags & kInlineValues) &&
                 info->basic_size >= 16 && info->basic_size < kMaxObjectSize) {
        const Address place = object + static_cast<Address>(info->basic_size);
        const auto head = reader_.read_value<std::uint32_t>(place).value_or(0);
        inline_values.capacity = head & 0xff;
        if ((head >> 24) != 0) inline_values.values = place;  // `valid`
      }
    }
  } else if (info->dict_offset > 0 && info->dict_offset < kMaxObjectSize) {
    dictionary = reader_.read_value<Address>(object + static_cast<Address>(info->dict_offset)).value_or(0);
  }
  if (dictionary != 0) return dict_storage(dictionary);
  if (inline_values.keys == 0 || inline_values.values == 0) return std::nullopt;
  return inline_values;
}

std::optional<Address> Objects::attribute(Address object, std::string_view name) {
  auto storage = instance_storage(object);
  if (!storage) return std::nullopt;
  if (storage->values == 0) return pick(items(*storage), std::span(&name, 1)).front();
  // Instances of one class share their keys: look the name up once.
  auto [known, fresh] = positions_.try_emplace({storage->keys, std::string(name)});
  if (fresh) {
    std::vector<Item> names = table(storage->keys);
    for (std::size_t i = 0; i < names.size(); ++i) names[i].second = i + 1;  // no position is null
    auto found = pick(names, std::span(&name, 1)).front();
    if (found) known->second = *found - 1;
  }
  if (!known->second || *known->second >= storage->capacity || !plausible(storage->values))
    return std::nullopt;
  auto value = reader_.read_value<Address>(storage->values + layout_.values_first + 8 * *known->second);
  return value && *value != 0 ? value : std::nullopt;
}

std::vector<std::optional<std::int64_t>> Objects::integers(std::span<const Address> objects) const {
  struct Raw {
    std::int64_t tag = 0;
    std::array<std::uint32_t, 3> digits{};
  };
  std::vector<Raw> raw(objects.size());
  Batch batch(reader_);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    const Address at = plausible(objects[i]) ? objects[i] : 0;
    batch.add(at + layout_.int_size, std::as_writable_bytes(std::span(&raw[i].tag, 1)));
    batch.add(at + layout_.int_digits, std::as_writable_bytes(std::span(raw[i].digits)));
  }
  const std::vector<bool> done = batch.read();
  std::vector<std::optional<std::int64_t>> result(objects.size());
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (!done[2 * i]) continue;
    std::uint64_t count = 0;
    bool negative = false;
    if (layout_.minor >= 12) {  // lv_tag: sign in the lowest two bits (0 +, 1 zero, 2 -), digits from bit 3
      const auto bits = static_cast<std::uint64_t>(raw[i].tag);
      count = (bits & 3) == 1 ? 0 : bits >> 3;
      negative = (bits & 3) == 2;
    } else {  // ob_size: number of digits, negative for a negative number
      negative = raw[i].tag < 0;
      count = negative ? 0 - static_cast<std::uint64_t>(raw[i].tag) : static_cast<std::uint64_t>(raw[i].tag);
    }
    if (count > 3) continue;
    auto& digits = raw[i].digits;
    // Two of the digits may lie behind the end of a mapping.
    if (!done[2 * i + 1] && count > 0 &&
        !reader_.read(objects[i] + layout_.int_digits,
                      std::as_writable_bytes(std::span(digits)).first(4 * count))) {
      continue;
    }
    std::fill(digits.begin() + static_cast<std::ptrdiff_t>(count), digits.end(), 0);
    if (digits[0] >> 30 || digits[1] >> 30 || digits[2] >= 8) continue;
    const std::uint64_t size =
        std::uint64_t{digits[0]} | std::uint64_t{digits[1]} << 30 | std::uint64_t{digits[2]} << 60;
    result[i] = negative ? -static_cast<std::int64_t>(size) : static_cast<std::int64_t>(size);
  }
  return result;
}

SimpleValue Objects::value(Address object) {
  const TypeInfo* info = type_info_of(object);
  if (info == nullptr) return OpaqueValue{"", object};
  if (info->name == "NoneType") return NoneValue{};
  if (info->flags & kIntSubclass) {
    if (auto number = integers(std::span(&object, 1)).front()) {
      if (info->name == "bool") return *number != 0;
      return *number;
    }
  } else if (info->flags & kStrSubclass) {
    if (auto string = text(object)) return *string;
  } else if (info->flags & kBytesSubclass) {
    if (auto data = bytes(object)) return BytesValue{*data};
  } else if (info->name == "float") {
    if (auto number = reader_.read_value<double>(object + layout_.float_value)) return *number;
  }
  return OpaqueValue{info->name, object};
}

}  // namespace hangtrace::python
