#include "unwind/table_cache.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "elf/cursor.hpp"
#include "unwind/call_site.hpp"
#include "unwind/pointer.hpp"

namespace hangtrace::unwind {

namespace {

constexpr std::uint64_t max_entry = 64 << 10;  // the largest in libtorch_cpu has 7.3 KiB
constexpr std::uint64_t max_debug_frame = 64 << 20;
constexpr std::size_t max_entries = 4 << 20;
constexpr std::size_t max_cies = 4096;
constexpr std::uint64_t max_cie_bytes = 16 << 20;
constexpr std::uint64_t max_indexed_bytes = 256 << 20;
constexpr std::uint64_t max_scanned = 256 << 20;
constexpr std::size_t max_rows = 16384;
constexpr std::size_t max_row_bytes = 32 << 20;
constexpr std::size_t max_near_rows = 4096;
constexpr std::size_t bytes_a_step = 256;
constexpr int max_overlap = 16;  // entries of the same or an enclosing range before the one that begins last

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

std::shared_ptr<const Cie> FrameTable::cie(Flavour flavour, Address position) {
  auto& cies = cies_[flavour == Flavour::eh_frame ? 0 : 1];
  const auto known = cies.find(position);
  if (known != cies.end()) return known->second;
  if (cie_bytes_ > max_cie_bytes) return nullptr;
  if (cies.size() >= max_cies) cies.clear();
  std::shared_ptr<const Cie> parsed;
  if (const auto entry = read_entry(flavour, position)) {
    cie_bytes_ += entry->bytes.size();
    if (auto info = parse_cie(*entry, flavour, module_.machine()))
      parsed = std::make_shared<const Cie>(std::move(*info));
  }
  return cies.emplace(position, std::move(parsed)).first->second;
}

std::optional<FrameTable::Found> FrameTable::open(Flavour flavour, Address position) {
  auto entry = read_entry(flavour, position);
  if (!entry) return std::nullopt;
  const auto parent = cie_position(*entry, flavour);
  auto info = parent ? cie(flavour, *parent) : nullptr;
  if (info == nullptr) return std::nullopt;
  const auto range = parse_fde(*entry, *info, flavour, header_, &module_);
  if (!range) return std::nullopt;
  return Found{std::move(*entry), *range, std::move(info)};
}

// Adds the entries from `position` on; returns where they end. Linkers that concatenate tables may leave the
// terminator of one in the middle.
Address FrameTable::index_entries(Flavour flavour, Address position, Address end, bool skip_zeros,
                                  std::vector<IndexEntry>& index) {
  constexpr Address terminator_size = 4;
  while (position < end && index.size() < max_entries && indexed_bytes_ < max_indexed_bytes) {
    Address next = 0;
    const auto entry = read_entry(flavour, position, &next);
    if (!entry) {
      std::array<std::byte, terminator_size> word{};
      if (!skip_zeros || !read(flavour, position, word) || word != decltype(word){}) break;
      position += terminator_size;
      indexed_bytes_ += terminator_size;
      continue;
    }
    indexed_bytes_ += entry->bytes.size() + terminator_size;
    if (cie_position(*entry, flavour)) {
      const auto found = open(flavour, position);
      // What the linker dropped is at 0.
      if (found && found->range.begin < found->range.end && found->range.begin != 0)
        index.push_back({found->range.begin, found->range.end, position});
    }
    position = next;
  }
  return position;
}

// The form all linkers write is a sorted table of 32-bit pairs relative to the header. It is searched where
// it lies: an unsorted table makes a search fail or give an entry that does not cover the address, and is
// only then looked at as a whole.
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
  search_.encoding = cursor.value<std::uint8_t>();
  if (version != 1) return false;
  if (frame_encoding != pointer_omitted)
    eh_frame_ = read_pointer(cursor, frame_encoding, {header_, header_}).value_or(0);
  if (count_encoding == pointer_omitted || search_.encoding == pointer_omitted) return false;
  switch (search_.encoding & 0x8f) {
    case 0x03:
    case 0x0b:
      search_.pointer_size = 4;
      break;
    case 0x00:
    case 0x04:
    case 0x0c:
      search_.pointer_size = 8;
      break;
    default:  // entries of different sizes cannot be searched
      return false;
  }
  const auto count = read_pointer(cursor, count_encoding, {header_, header_});
  if (!count || *count > (header->second - cursor.position()) / (2 * search_.pointer_size)) return false;
  search_.va = header_ + cursor.position();
  search_.count = *count;
  return search_.count != 0;
}

std::optional<FrameTable::SearchPair> FrameTable::pair(std::uint64_t number) const {
  std::array<std::byte, 16> bytes{};
  const auto used = std::span(bytes).first(2 * search_.pointer_size);
  const Address at = search_.va + number * used.size();
  if (!module_.read_va(at, used)) return std::nullopt;
  elf::Cursor cursor{std::span<const std::byte>(used)};
  const PointerBase base{at, header_};
  const auto begin = read_pointer(cursor, search_.encoding, base);
  const auto fde = read_pointer(cursor, search_.encoding, base);
  if (!begin || !fde) return std::nullopt;
  return SearchPair{*begin, *fde};
}

bool FrameTable::search_is_sorted() const {
  Address last = 0;
  for (std::uint64_t i = 0; i < search_.count; ++i) {
    const auto next = pair(i);
    if (!next || next->begin < last) return false;
    last = next->begin;
  }
  return true;
}

void FrameTable::load() {
  if (loaded_) return;
  loaded_ = true;
  if (!load_header()) {
    search_.count = 0;
    load_eh_frame();
  }
}

void FrameTable::load_eh_frame() {
  const elf::Section* section = module_.section(".eh_frame");
  if (section != nullptr && section->va != 0 && section->size <= ~Address{0} - section->va) {
    index_entries(Flavour::eh_frame, section->va, section->va + section->size, true, linear_);
  } else if (eh_frame_ != 0) {
    index_entries(Flavour::eh_frame, eh_frame_, ~Address{0}, false, linear_);  // up to the terminator
  } else {
    scan_for_eh_frame();
  }
  std::ranges::stable_sort(linear_, {}, &IndexEntry::begin);
}

// Without section headers and search table: what looks like a CIE (identifier 0, version 1 or 3, augmentation
// "z...") in a segment begins a table.
void FrameTable::scan_for_eh_frame() {
  constexpr std::size_t window = 64 << 10;
  constexpr std::size_t head = 12;  // length, identifier, version, augmentation
  std::vector<std::byte> bytes;
  std::uint64_t scanned = 0;
  for (const elf::Segment& segment : module_.segments()) {
    if (segment.writable) continue;
    const Address end = segment.va + segment.file_size;
    for (Address at = (segment.va + 3) / 4 * 4; at < end && scanned < max_scanned;) {
      bytes.resize(std::min<std::uint64_t>(window + head, end - at));
      if (!module_.read_va(at, bytes)) break;
      Address next = at + std::min<std::size_t>(window, bytes.size());
      for (std::size_t i = 0; i + head <= bytes.size() && i < window; i += 4) {
        elf::Cursor cursor{std::span<const std::byte>(bytes).subspan(i + 4)};
        if (cursor.value<std::uint32_t>() != 0) continue;
        const auto version = cursor.value<std::uint8_t>();
        if ((version != 1 && version != 3) || cursor.value<char>() != 'z') continue;
        if (cie(Flavour::eh_frame, at + i) == nullptr) continue;
        next = std::max(index_entries(Flavour::eh_frame, at + i, end, false, linear_), at + i + 4);
        break;
      }
      scanned += std::min<Address>(next - at, bytes.size());
      at = (next + 3) / 4 * 4;
    }
  }
}

void FrameTable::load_debug_frame() {
  if (debug_frame_loaded_) return;
  debug_frame_loaded_ = true;
  const elf::Section* section = module_.section(".debug_frame");
  auto bytes = section == nullptr ? std::nullopt : module_.section_bytes(*section, max_debug_frame);
  if (!bytes) return;
  debug_frame_ = std::move(*bytes);
  index_entries(Flavour::debug_frame, 0, debug_frame_.size(), true, debug_index_);
  std::ranges::stable_sort(debug_index_, {}, &IndexEntry::begin);
}

std::optional<FrameTable::Found> FrameTable::find_in_header(Address va, bool& broken) {
  std::uint64_t low = 0;
  std::uint64_t high = search_.count;
  while (low < high) {
    const std::uint64_t middle = (low + high) / 2;
    const auto probe = pair(middle);
    if (!probe) return std::nullopt;
    if (probe->begin <= va) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  for (int back = 0; low != 0 && back < max_overlap; ++back) {
    const auto entry = pair(--low);
    auto found = entry ? open(Flavour::eh_frame, entry->fde) : std::nullopt;
    if (found && va >= found->range.begin && va < found->range.end) {
      broken = false;
      return found;
    }
    if (back == 0) broken = !found;
  }
  return std::nullopt;
}

std::optional<FrameTable::Found> FrameTable::find_in(Flavour flavour, const std::vector<IndexEntry>& index,
                                                     Address va) {
  auto after = std::ranges::upper_bound(index, va, {}, &IndexEntry::begin);
  for (int back = 0; after != index.begin() && back < max_overlap; ++back) {
    --after;
    if (va < after->end) return open(flavour, after->fde);
  }
  return std::nullopt;
}

std::optional<FrameTable::Found> FrameTable::find(Address va, bool& broken) {
  load();
  if (search_.count != 0) {
    if (auto found = find_in_header(va, broken)) return found;
    if (!search_.checked) {
      search_.checked = true;
      if (!search_is_sorted()) {
        search_.count = 0;
        load_eh_frame();
      }
    }
  }
  if (search_.count == 0) {
    if (auto found = find_in(Flavour::eh_frame, linear_, va)) {
      broken = false;
      return found;
    }
  }
  load_debug_frame();
  auto found = find_in(Flavour::debug_frame, debug_index_, va);
  if (found) broken = false;
  return found;
}

std::vector<FunctionRange> FrameTable::functions() {
  const std::lock_guard lock(mutex_);
  load();
  std::vector<FunctionRange> result;
  for (std::uint64_t i = 0; i < search_.count; ++i) {
    const auto entry = pair(i);
    const auto found = entry ? open(Flavour::eh_frame, entry->fde) : std::nullopt;
    if (found) result.push_back({found->range.begin, found->range.end});
  }
  load_debug_frame();
  for (const auto* index : {&linear_, &debug_index_}) {
    for (const IndexEntry& entry : *index) result.push_back({entry.begin, entry.end});
  }
  std::ranges::stable_sort(result, {}, &FunctionRange::begin);
  return result;
}

FrameTable::Answer FrameTable::row(Address va) {
  const std::lock_guard lock(mutex_);
  const auto known = rows_.find(va);
  if (known != rows_.end()) return known->second;
  Answer answer;
  int cost = 0;
  if (const auto found = find(va, answer.broken)) {
    cost = static_cast<int>((found->entry.bytes.size() + found->cie->instructions.size()) / bytes_a_step);
    auto row = evaluate(found->entry, found->range, *found->cie, va);
    answer.broken = !row;
    if (row) answer.row = std::make_shared<const Row>(std::move(*row));
    answer.ends_call = call_before(module_, va + 1).any();
  }
  row_bytes_ += answer.row ? sizeof(Row) + answer.row->expressions.size() : 0;
  if (rows_.size() >= max_rows || row_bytes_ >= max_row_bytes) {
    rows_.clear();
    row_bytes_ = 0;
  }
  rows_.emplace(va, answer);
  answer.cost = cost;
  return answer;
}

std::optional<FunctionRange> FrameTable::function(Address va) {
  bool broken = false;
  const std::lock_guard lock(mutex_);
  const auto found = find(va, broken);
  if (!found) return std::nullopt;
  return FunctionRange{found->range.begin, found->range.end};
}

FrameTable& TableCache::of(const elf::Module& module) {
  const std::lock_guard lock(mutex_);
  auto& table = tables_[&module];
  if (!table) table = std::make_unique<FrameTable>(module);
  return *table;
}

FrameTable::Answer NearRows::row(const elf::Location& location) {
  const Address address = location.va + location.bias;
  auto known = rows_.find(address);
  int cost = 0;
  if (known == rows_.end()) {
    FrameTable::Answer answer = tables_.of(*location.module).row(location.va);
    if (rows_.size() >= max_near_rows) return answer;
    cost = std::exchange(answer.cost, 0);
    known = rows_.emplace(address, std::move(answer)).first;
  }
  const FrameTable::Answer& kept = known->second;
  return {{std::shared_ptr<const Row>(), kept.row.get()},
          kept.broken,
          kept.ends_call,
          cost};  // counts no reference
}

}  // namespace hangtrace::unwind
