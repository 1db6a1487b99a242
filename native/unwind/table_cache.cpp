#include "unwind/table_cache.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "elf/cursor.hpp"
#include "unwind/pointer.hpp"

namespace hangtrace::unwind {

namespace {

constexpr std::uint64_t max_entry = 1 << 20;
constexpr std::uint64_t max_debug_frame = 64 << 20;
constexpr std::size_t max_entries = 4 << 20;
constexpr std::size_t max_cies = 4096;
constexpr std::size_t max_rows = 16384;
constexpr std::uint64_t compressed_section = 0x800;  // SHF_COMPRESSED

}  // namespace

bool FrameTable::read(Flavour flavour, Address position, std::span<std::byte> into) const {
  if (flavour == Flavour::eh_frame) return module_.read_va(position, into);
  if (position > debug_frame_.size() || into.size() > debug_frame_.size() - position) return false;
  std::memcpy(into.data(), debug_frame_.data() + position, into.size());
  return true;
}

// The entry whose length field is at `position`; nullopt at a terminator and at bytes that are no entry.
std::optional<Entry> FrameTable::read_entry(Flavour flavour, Address position, Address* next) const {
  std::array<std::byte, 12> head{};
  if (!read(flavour, position, std::span(head).first(4))) return std::nullopt;
  std::uint64_t length = elf::Cursor(head).value<std::uint32_t>();
  Entry entry;
  entry.position = position + 4;
  if (length == 0xffffffff) {
    if (!read(flavour, position, head)) return std::nullopt;
    elf::Cursor cursor(head);
    cursor.take(4);
    length = cursor.value<std::uint64_t>();
    entry.is_64_bit = true;
    entry.position = position + 12;
  }
  if (length == 0 || length > max_entry) return std::nullopt;
  entry.bytes.resize(length);
  if (!read(flavour, entry.position, entry.bytes)) return std::nullopt;
  if (next != nullptr) *next = entry.position + length;
  return entry;
}

const Cie* FrameTable::cie(Flavour flavour, Address position) {
  auto& cies = cies_[flavour == Flavour::eh_frame ? 0 : 1];
  auto found = cies.find(position);
  if (found == cies.end()) {
    if (cies.size() >= max_cies) cies.clear();
    const auto entry = read_entry(flavour, position);
    found = cies.emplace(position, entry ? parse_cie(*entry, flavour) : std::nullopt).first;
  }
  return found->second ? &*found->second : nullptr;
}

std::optional<FrameTable::Found> FrameTable::open(Flavour flavour, Address position) {
  auto entry = read_entry(flavour, position);
  if (!entry) return std::nullopt;
  const auto parent = cie_position(*entry, flavour);
  const Cie* const info = parent ? cie(flavour, *parent) : nullptr;
  if (info == nullptr) return std::nullopt;
  const auto range = parse_fde(*entry, *info, flavour, header_);
  if (!range) return std::nullopt;
  return Found{std::move(*entry), *range, info};
}

void FrameTable::index_entries(Flavour flavour, Address position, Address end,
                               std::vector<IndexEntry>& index) {
  for (std::size_t count = 0; position < end && count < max_entries; ++count) {
    Address next = 0;
    const auto entry = read_entry(flavour, position, &next);
    if (!entry) break;
    if (cie_position(*entry, flavour)) {
      const auto found = open(flavour, position);
      if (found && found->range.begin < found->range.end && found->range.begin != 0) {
        index.push_back({found->range.begin, found->range.end, position});
      }
    }
    position = next;
  }
  std::ranges::sort(index, {}, &IndexEntry::begin);
}

// The form all linkers write: a sorted table of 32-bit pairs relative to the header. Other forms are not
// used. It is searched where it lies: an unsorted table makes a search fail or give an entry that does not
// cover the address.
bool FrameTable::load_header() {
  constexpr std::size_t largest_head = 4 + 8 + 8;
  const auto header = module_.eh_frame_header();
  if (!header || header->second < 8) return false;
  header_ = header->first;
  std::array<std::byte, largest_head> bytes{};
  const std::size_t size = std::min<std::uint64_t>(header->second, bytes.size());
  if (!module_.read_va(header_, std::span(bytes).first(size))) return false;
  elf::Cursor cursor{std::span<const std::byte>(bytes).first(size)};
  const auto version = cursor.value<std::uint8_t>();
  const auto frame_encoding = cursor.value<std::uint8_t>();
  const auto count_encoding = cursor.value<std::uint8_t>();
  const auto table_encoding = cursor.value<std::uint8_t>();
  if (version != 1) return false;
  eh_frame_ = read_pointer(cursor, frame_encoding, {header_, header_}).value_or(0);
  if (count_encoding == pointer_omitted || table_encoding != 0x3b) return false;
  const auto count = read_pointer(cursor, count_encoding, {header_, header_});
  if (!count || *count > (header->second - cursor.position()) / 8) return false;
  sorted_ = header_ + cursor.position();
  sorted_count_ = *count;
  return sorted_count_ != 0;
}

void FrameTable::load() {
  if (loaded_) return;
  loaded_ = true;
  if (load_header()) return;
  const elf::Section* section = module_.section(".eh_frame");
  Address start = eh_frame_;
  Address end = ~Address{0};  // up to the terminator
  if (section != nullptr && section->va != 0) {
    start = section->va;
    end = section->va + section->size;
  }
  if (start != 0) index_entries(Flavour::eh_frame, start, end, linear_);
}

void FrameTable::load_debug_frame() {
  if (debug_frame_loaded_) return;
  debug_frame_loaded_ = true;
  const elf::Section* section = module_.section(".debug_frame");
  if (section == nullptr || (section->flags & compressed_section) != 0) return;
  auto bytes = module_.section_bytes(*section, max_debug_frame);
  if (!bytes) return;
  debug_frame_ = std::move(*bytes);
  index_entries(Flavour::debug_frame, 0, debug_frame_.size(), debug_index_);
}

std::optional<Address> FrameTable::position_in_header(Address va) const {
  const auto relative = static_cast<std::int64_t>(va - header_);
  std::uint64_t low = 0;
  std::uint64_t high = sorted_count_;
  while (low < high) {
    const std::uint64_t middle = (low + high) / 2;
    const auto begin = module_.value_at<std::int32_t>(sorted_ + 8 * middle);
    if (!begin) return std::nullopt;
    if (*begin <= relative) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const auto fde = low == 0 ? std::nullopt : module_.value_at<std::int32_t>(sorted_ + 8 * (low - 1) + 4);
  if (!fde) return std::nullopt;
  return header_ + static_cast<Address>(std::int64_t{*fde});
}

std::optional<FrameTable::Found> FrameTable::find(Address va, bool& broken) {
  load();
  const auto covers = [va](const Found& found) { return va >= found.range.begin && va < found.range.end; };
  const auto search = [&](Flavour flavour, const std::vector<IndexEntry>& index) -> std::optional<Found> {
    auto after = std::ranges::upper_bound(index, va, {}, &IndexEntry::begin);
    if (after == index.begin() || va >= std::prev(after)->end) return std::nullopt;
    return open(flavour, std::prev(after)->fde);
  };
  if (sorted_count_ != 0) {
    if (const auto position = position_in_header(va)) {
      auto found = open(Flavour::eh_frame, *position);
      if (found && covers(*found)) return found;
      broken = !found;
    }
  } else if (auto found = search(Flavour::eh_frame, linear_)) {
    return found;
  }
  load_debug_frame();
  auto found = search(Flavour::debug_frame, debug_index_);
  if (found) broken = false;
  return found;
}

FrameTable::Answer FrameTable::row(Address va) {
  const auto known = rows_.find(va);
  if (known != rows_.end()) return known->second;
  Answer answer;
  if (const auto found = find(va, answer.broken)) {
    auto row = evaluate(found->entry, found->range, *found->cie, va);
    answer.broken = !row;
    if (row) answer.row = std::make_shared<const Row>(std::move(*row));
  }
  if (rows_.size() >= max_rows) rows_.clear();
  rows_.emplace(va, answer);
  return answer;
}

std::optional<FunctionRange> FrameTable::function(Address va) {
  bool broken = false;
  const auto found = find(va, broken);
  if (!found) return std::nullopt;
  return FunctionRange{found->range.begin, found->range.end};
}

FrameTable& TableCache::of(const elf::Module& module) {
  auto& table = tables_[&module];
  if (!table) table = std::make_unique<FrameTable>(module);
  return *table;
}

}  // namespace hangtrace::unwind
