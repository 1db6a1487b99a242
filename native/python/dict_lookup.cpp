#include <algorithm>
#include <array>
#include <bit>

#include "python/objects.hpp"

// The tables of dicts: Include/internal/pycore_dict.h, before 3.11 Objects/dict-common.h.
namespace hangtrace::python {
namespace {

constexpr std::size_t kMaxProbes = 64;  // of one key; mostly one or two are enough
constexpr std::uint64_t kMinSlots = 8;
constexpr std::int64_t kEmpty = -1;
constexpr std::int64_t kDeleted = -2;
constexpr int kPerturbShift = 5;

std::int64_t index_of(std::span<const std::byte> raw) {
  switch (raw.size()) {
    case 1:
      return load<std::int8_t>(raw, 0);
    case 2:
      return load<std::int16_t>(raw, 0);
    case 4:
      return load<std::int32_t>(raw, 0);
    default:
      return load<std::int64_t>(raw, 0);
  }
}

}  // namespace

// Index slots of 1, 2, 4 or 8 bytes each, then entries of (hash, key, value) or, for kinds other than 0, of
// (key, value).
std::optional<Objects::TableHead> Objects::table_head(Address keys) const {
  std::vector<std::byte> head(static_cast<std::size_t>(layout_.keys_indices));
  if (!plausible(keys) || !reader_.read(keys, head)) return std::nullopt;
  TableHead table;
  const auto used = load<std::int64_t>(head, layout_.keys_entries_used);
  if (used < 0 || used > static_cast<std::int64_t>(kMaxEntries)) return std::nullopt;
  table.count = static_cast<std::size_t>(used);
  if (layout_.keys_size >= 0) {
    const auto slots = load<std::uint64_t>(head, layout_.keys_size);
    if (!std::has_single_bit(slots) || slots > (std::uint64_t{1} << 32)) return std::nullopt;
    table.slots = slots;
    table.index_bytes = slots * (slots <= 0xff ? 1 : slots <= 0xffff ? 2 : 4);
  } else {
    // dk_log2_size stands before dk_log2_index_bytes.
    const auto log2_slots = load<std::uint8_t>(head, layout_.keys_log2_index_bytes - 1);
    const auto log2_bytes = load<std::uint8_t>(head, layout_.keys_log2_index_bytes);
    const auto kind = load<std::uint8_t>(head, layout_.keys_kind);
    if (log2_bytes > 40 || kind > 2) return std::nullopt;
    table.slots = log2_slots <= log2_bytes ? std::uint64_t{1} << log2_slots : 0;
    table.index_bytes = std::uint64_t{1} << log2_bytes;
    if (kind != 0) table.entry_words = 2;
  }
  table.indices = keys + static_cast<Address>(layout_.keys_indices);
  table.entries = table.indices + table.index_bytes;
  return table;
}

// Believes in a hash function that gives one of the first keys of a table the hash it has.
bool Objects::learn_hash(const TableHead& table) {
  if (hash_ || !hash_secret_ || hash_refused_) return hash_.has_value();
  for (std::size_t i = 0; i < std::min<std::size_t>(table.count, 4) && !hash_; ++i) {
    const auto key = reader_.read_value<Address>(table.entries + 8 * ((i + 1) * table.entry_words - 2));
    const auto name = key ? text(*key) : std::nullopt;
    if (!name) continue;
    // PyASCIIObject: the hash follows the length.
    const auto hash =
        reader_.read_value<std::uint64_t>(*key + static_cast<Address>(layout_.string_length) + 8);
    if (hash) hash_ = StrHash::of(*hash_secret_, *name, *hash);
  }
  hash_refused_ = !hash_;
  return hash_.has_value();
}

// As the interpreter does it (Objects/dictobject.c). `told` is false if there is something that cannot be.
std::optional<Address> Objects::look_up(const TableHead& table, std::string_view key, bool& told) const {
  const std::uint64_t mask = table.slots - 1;
  const std::size_t width = table.index_bytes / table.slots;
  std::uint64_t perturb = (*hash_)(key);
  std::uint64_t slot = perturb & mask;
  for (std::size_t probe = 0; probe < kMaxProbes; ++probe) {
    std::array<std::byte, 8> raw{};
    const auto bytes = std::span(raw).first(width);
    if (!reader_.read(table.indices + slot * width, bytes)) break;
    const std::int64_t index = index_of(bytes);
    if (index == kEmpty) return std::nullopt;
    if (index != kDeleted) {
      if (index < 0 || static_cast<std::size_t>(index) >= table.count) break;
      const std::size_t end = (static_cast<std::size_t>(index) + 1) * table.entry_words;
      const auto entry = reader_.read_value<std::array<Address, 2>>(table.entries + 8 * (end - 2));
      if (!entry || (*entry)[1] == 0) break;
      if (is_ascii((*entry)[0], key)) return (*entry)[1];
    }
    perturb >>= kPerturbShift;
    slot = (slot * 5 + perturb + 1) & mask;
  }
  told = false;
  return std::nullopt;
}

std::optional<std::vector<std::optional<Address>>> Objects::look_up(Address dict_object,
                                                                    std::span<const std::string_view> keys) {
  const auto storage = dict_storage(dict_object);
  if (!storage || storage->values != 0) return std::nullopt;
  const auto table = table_head(storage->keys);
  if (!table || table->slots < kMinSlots || table->count >= table->slots) return std::nullopt;
  const std::uint64_t width = table->index_bytes / table->slots;
  if (width != 1 && width != 2 && width != 4 && width != 8) return std::nullopt;
  if (!learn_hash(*table)) return std::nullopt;
  std::vector<std::optional<Address>> result;
  bool told = true;
  for (const std::string_view key : keys) result.push_back(look_up(*table, key, told));
  return told ? std::optional(std::move(result)) : std::nullopt;
}

std::optional<Address> Objects::find(Address dict_object, std::string_view key) {
  return find(dict_object, std::span(&key, 1)).front();
}

std::vector<std::optional<Address>> Objects::find(Address dict_object,
                                                  std::span<const std::string_view> keys) {
  if (auto found = look_up(dict_object, keys)) return *std::move(found);
  return pick(dict(dict_object), keys);
}

}  // namespace hangtrace::python
