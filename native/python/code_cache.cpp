#include "python/code_cache.hpp"

#include <algorithm>

namespace hangtrace::python {
namespace {

constexpr std::size_t kMaxTable = 1 << 20;  // bytes of a line or exception table
constexpr std::size_t kTableGuess = 768;    // most tables fit in a read of this size
constexpr std::int64_t kMaxSlots = 1 << 16;
constexpr std::int64_t kMaxStackSize = 1 << 16;
constexpr std::size_t kMaxCached = 1 << 16;

// The fields that stay the same for the life of a code object.
std::vector<int> fingerprint_fields(const Layout& layout) {
  std::vector<int> fields = {layout.object_type,   layout.code_filename,   layout.code_name,
                             layout.code_qualname, layout.code_lines,      layout.code_exceptions,
                             layout.code_names,    layout.code_cell_names, layout.code_free_names,
                             layout.code_bytes};
  std::erase_if(fields, [](int field) { return field < 0; });
  return fields;
}

std::size_t body_size(const Layout& layout) {
  int end = std::max({layout.code_first_line + 4, layout.code_stack_size + 4, layout.tuple_size + 8});
  for (int field : fingerprint_fields(layout)) end = std::max(end, field + 8);
  return static_cast<std::size_t>(end);
}

std::vector<std::byte> fingerprint(const Layout& layout, std::span<const std::byte> body) {
  std::vector<std::byte> result;
  for (int field : fingerprint_fields(layout)) {
    auto part = body.subspan(static_cast<std::size_t>(field), 8);
    result.insert(result.end(), part.begin(), part.end());
  }
  auto line = body.subspan(static_cast<std::size_t>(layout.code_first_line), 4);
  result.insert(result.end(), line.begin(), line.end());
  return result;
}

// Contents of bytes objects, read together.
std::vector<std::optional<std::vector<std::byte>>> read_tables(const Objects& objects,
                                                               const std::vector<Address>& addresses) {
  const Layout& layout = objects.layout();
  const auto data_at = static_cast<std::size_t>(layout.bytes_data);
  const std::size_t guess = data_at + kTableGuess;
  std::vector<std::byte> heads(addresses.size() * guess);
  Batch batch(objects.reader());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    batch.add(plausible(addresses[i]) ? addresses[i] : 0, std::span(heads).subspan(i * guess, guess));
  }
  const std::vector<bool> done = batch.read();
  std::vector<std::optional<std::vector<std::byte>>> result(addresses.size());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (!plausible(addresses[i])) continue;
    auto head = std::span(heads).subspan(i * guess, guess);
    if (!done[i] && !objects.reader().read(addresses[i], head.first(data_at))) continue;
    const auto size = load<std::int64_t>(head, static_cast<std::size_t>(layout.bytes_size));
    if (size < 0 || size > static_cast<std::int64_t>(kMaxTable)) continue;
    std::vector<std::byte> table(static_cast<std::size_t>(size));
    if (done[i] && table.size() <= kTableGuess) {
      std::copy_n(head.begin() + static_cast<std::ptrdiff_t>(data_at), table.size(), table.begin());
    } else if (!table.empty() && !objects.reader().read(addresses[i] + data_at, table)) {
      continue;
    }
    result[i] = std::move(table);
  }
  return result;
}

}  // namespace

std::optional<std::int64_t> Code::position(const Layout& layout, Address start,
                                           std::uint64_t instruction) const {
  if (layout.code_adaptive >= 0) {
    const auto distance = static_cast<std::int64_t>(instruction - start);
    if (distance < 0) return distance >= -2 ? std::optional<std::int64_t>(-1) : std::nullopt;
    return distance / 2 < units ? std::optional(distance / 2) : std::nullopt;
  }
  const auto index = static_cast<std::int64_t>(static_cast<std::int32_t>(instruction));
  return layout.minor == 10 ? 2 * index : index;
}

int Code::line(const Layout& layout, std::int64_t position) const {
  if (layout.minor >= 11) return line_in_locations(lines, first_line, position);
  if (layout.minor == 10) return line_in_ranges(lines, first_line, position);
  return line_in_lnotab(lines, first_line, position);
}

int Code::line(const Layout& layout, Address code, std::uint64_t instruction) const {
  const Address start = code + static_cast<Address>(std::max(layout.code_adaptive, 0));
  const auto at = position(layout, start, instruction);
  return at ? line(layout, *at) : 0;
}

const Code* CodeCache::find(Address address) const {
  if (!checked_.contains(address)) return nullptr;
  auto entry = entries_.find(address);
  return entry == entries_.end() ? nullptr : &entry->second.code;
}

void CodeCache::add(Objects& objects, const std::vector<Address>& addresses) {
  const Layout& layout = objects.layout();
  std::vector<Address> wanted;
  for (Address address : addresses) {
    if (plausible(address) && find(address) == nullptr) wanted.push_back(address);
  }
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  const std::size_t size = body_size(layout);
  std::vector<std::byte> bodies(wanted.size() * size);
  auto body_of = [&](std::size_t i) { return std::span(bodies).subspan(i * size, size); };
  Batch batch(objects.reader());
  for (std::size_t i = 0; i < wanted.size(); ++i) batch.add(wanted[i], body_of(i));
  const std::vector<bool> done = batch.read();

  if (entries_.size() > kMaxCached) entries_.clear();
  std::vector<std::size_t> fresh;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!done[i]) continue;
    auto known = entries_.find(wanted[i]);
    if (known != entries_.end() && known->second.fingerprint == fingerprint(layout, body_of(i))) {
      checked_.insert(wanted[i]);
      continue;
    }
    const TypeInfo* type =
        objects.type(load<Address>(body_of(i), static_cast<std::size_t>(layout.object_type)));
    if (type == nullptr || type->name != "code") continue;
    fresh.push_back(i);
  }
  if (fresh.empty()) return;

  auto field = [&](std::size_t i, int offset) {
    return offset < 0 ? Address{0} : load<Address>(body_of(i), static_cast<std::size_t>(offset));
  };
  std::vector<Address> names, tables, tuples;
  for (std::size_t i : fresh) {
    names.push_back(field(i, layout.code_filename));
    names.push_back(field(i, layout.code_qualname >= 0 ? layout.code_qualname : layout.code_name));
    tables.push_back(field(i, layout.code_lines));
    tables.push_back(field(i, layout.code_exceptions));
    tuples.push_back(field(i, layout.code_names));
    tuples.push_back(field(i, layout.code_cell_names));
    tuples.push_back(field(i, layout.code_free_names));
  }
  const auto texts = objects.texts(names);
  const auto contents = read_tables(objects, tables);
  std::vector<std::int64_t> counts(tuples.size());
  for (std::size_t k = 0; k < tuples.size(); ++k) {
    const Address at = plausible(tuples[k]) ? tuples[k] + static_cast<Address>(layout.tuple_size) : 0;
    batch.add(at, std::as_writable_bytes(std::span(&counts[k], 1)));
  }
  const std::vector<bool> counted = batch.read();
  for (std::size_t k = 0; k < fresh.size(); ++k) {
    const std::size_t i = fresh[k];
    if (!texts[2 * k] || !texts[2 * k + 1] || !contents[2 * k]) continue;
    Entry entry;
    entry.fingerprint = fingerprint(layout, body_of(i));
    Code& code = entry.code;
    code.file = *texts[2 * k];
    code.function = *texts[2 * k + 1];
    code.first_line = load<std::int32_t>(body_of(i), static_cast<std::size_t>(layout.code_first_line));
    // PyObject_VAR_HEAD: ob_size lies where that of a tuple does.
    code.units = load<std::int64_t>(body_of(i), static_cast<std::size_t>(layout.tuple_size));
    code.lines = *contents[2 * k];
    code.exceptions = contents[2 * k + 1].value_or(std::vector<std::byte>());
    bool sound = true;
    for (std::size_t t = 3 * k; t < 3 * k + 3; ++t) {
      if (tuples[t] == 0) continue;
      sound = sound && counted[t] && counts[t] >= 0 && counts[t] < kMaxSlots;
      code.name_tuples.push_back(tuples[t]);
      code.named_slots += static_cast<std::size_t>(counts[t]);
    }
    if (!sound) continue;
    if (layout.code_stack_size >= 0) {
      const auto stack = load<std::int32_t>(body_of(i), static_cast<std::size_t>(layout.code_stack_size));
      code.stack_size = static_cast<std::size_t>(std::clamp<std::int64_t>(stack, 0, kMaxStackSize));
    }
    entries_[wanted[i]] = std::move(entry);
    checked_.insert(wanted[i]);
  }
}

}  // namespace hangtrace::python
