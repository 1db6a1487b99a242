#include "dwarf/unit_index.hpp"

#include <algorithm>
#include <set>

#include "dwarf/constants.hpp"

namespace hangtrace::dwarf {

namespace {

constexpr std::uint64_t max_loaded = 512 << 20;  // of units kept
constexpr std::uint64_t max_aranges = 128 << 20;
constexpr std::size_t units_between_clocks = 64;

std::span<const Address> within(std::span<const Address> addresses, const Range& range) {
  const auto first = std::ranges::lower_bound(addresses, range.begin);
  const auto last = std::ranges::lower_bound(first, addresses.end(), range.end);
  return {first, last};
}

}  // namespace

void UnitIndex::load_headers() {
  if (headers_loaded_) return;
  headers_loaded_ = true;
  const Section& info = sections_[".debug_info"];
  for (std::uint64_t offset = 0;;) {
    const auto header = read_unit_header(info, offset);
    if (!header || header->end <= offset) return;
    headers_.push_back(*header);
    offset = header->end;
  }
}

// .debug_aranges: for each unit a header and pairs of address and length, aligned to their size.
void UnitIndex::load_address_ranges() {
  if (ranges_loaded_) return;
  ranges_loaded_ = true;
  const Section& section = sections_[".debug_aranges"];
  const auto bytes = section.read(0, std::min(section.size(), max_aranges));
  if (!bytes) return;
  elf::Cursor cursor(*bytes);
  while (cursor.ok() && !cursor.at_end()) {
    const std::size_t begin = cursor.position();
    const InitialLength initial = read_initial_length(cursor);
    if (!cursor.ok() || initial.length > cursor.left()) break;
    const std::size_t end = cursor.position() + initial.length;
    const auto version = cursor.value<std::uint16_t>();
    const std::uint64_t unit = initial.wide ? cursor.value<std::uint64_t>() : cursor.value<std::uint32_t>();
    const auto address_size = cursor.value<std::uint8_t>();
    const auto segment_size = cursor.value<std::uint8_t>();
    if (version == 2 && address_size == sizeof(Address) && segment_size == 0) {
      constexpr std::size_t pair = 2 * sizeof(Address);
      cursor.seek(begin + (cursor.position() - begin + pair - 1) / pair * pair);
      while (cursor.ok() && cursor.position() + pair <= end) {
        const auto address = cursor.value<Address>();
        const auto length = cursor.value<std::uint64_t>();
        if (address == 0 && length == 0) break;
        if (address != 0 && address + length > address)
          listed_.push_back({{address, address + length}, unit});
      }
    }
    cursor.seek(end);
  }
  std::ranges::sort(listed_, {}, [](const Listed& listed) { return listed.range.begin; });
}

std::map<std::uint64_t, std::vector<Address>> UnitIndex::units_of(
    std::span<const Address> addresses, std::chrono::steady_clock::time_point deadline) {
  std::map<std::uint64_t, std::vector<Address>> units;
  load_address_ranges();
  std::vector<Address> left;
  for (const Address address : addresses) {
    auto at = std::ranges::upper_bound(listed_, address, {}, [](const Listed& it) { return it.range.begin; });
    if (at != listed_.begin() && address < std::prev(at)->range.end) {
      units[std::prev(at)->unit].push_back(address);
    } else {
      left.push_back(address);
    }
  }
  if (left.empty()) return units;

  load_headers();
  std::set<std::uint64_t> known;
  for (const Listed& listed : listed_) known.insert(listed.unit);
  std::size_t count = 0;
  for (const UnitHeader& header : headers_) {
    if (++count % units_between_clocks == 0 && std::chrono::steady_clock::now() > deadline) break;
    const bool has_code = header.type == unit_type::compile || header.type == unit_type::skeleton;
    if (known.contains(header.offset) || !has_code) continue;
    const auto unit = Unit::load(sections_, header, Unit::Extent::first_entry);
    if (!unit) continue;
    for (const Range& range : unit->ranges(unit->root())) {
      for (const Address address : within(left, range)) units[header.offset].push_back(address);
    }
  }
  for (auto& [offset, found] : units) {
    std::ranges::sort(found);
    found.erase(std::ranges::unique(found).begin(), found.end());
  }
  return units;
}

std::shared_ptr<const Unit> UnitIndex::unit_at(std::uint64_t offset) {
  const auto known = units_.upper_bound(offset);
  if (known != units_.begin() && std::prev(known)->second && offset < std::prev(known)->second->header().end)
    return std::prev(known)->second;
  load_headers();
  const auto at = std::ranges::upper_bound(headers_, offset, {}, &UnitHeader::offset);
  if (at == headers_.begin() || offset >= std::prev(at)->end) return nullptr;
  const UnitHeader& header = *std::prev(at);
  bytes_loaded_ += header.end - header.offset;
  if (bytes_loaded_ > max_loaded) return nullptr;
  std::shared_ptr<const Unit> unit = Unit::load(sections_, header, Unit::Extent::whole);
  if (unit && unit->is_split()) found_split_ = true;
  return units_.emplace(header.offset, std::move(unit)).first->second;
}

}  // namespace hangtrace::dwarf
