#include "nccl/find_layout.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "dwarf/structures.hpp"
#include "elf/symbols.hpp"

namespace hangtrace::nccl {

namespace {

// All structures stand in the first unit or two (bootstrap.cc, init.cc).
constexpr std::size_t most_units = 4;
constexpr std::size_t getter_bytes = 8192;
constexpr std::uint32_t max_comm = 64 << 20;
constexpr std::size_t max_release = 16;
constexpr std::uint64_t max_constants = 256 << 20;  // of what NCCL may be linked into

std::vector<std::string_view> structure_names() {
  std::set<std::string_view> names;
  for (const FieldName& each : fields) names.insert(each.structure);
  return {names.begin(), names.end()};
}

const dwarf::Structure* find(const dwarf::Structures& structures, std::string_view name) {
  if (!name.ends_with('*')) {
    const auto found = structures.found.find(name);
    return found == structures.found.end() ? nullptr : &found->second;
  }
  name.remove_suffix(1);
  const auto found = structures.found.lower_bound(name);
  return found != structures.found.end() && found->first.starts_with(name) ? &found->second : nullptr;
}

// The code of exported functions, with its end: they return in several places. Empty where it is not known.
template <std::size_t count>
std::array<std::vector<std::byte>, count> code_of(elf::Module& library,
                                                  const std::array<std::string_view, count>& names) {
  const auto places = elf::find_symbols(library, names);
  std::array<elf::SymbolQuery, count> queries{};
  for (std::size_t i = 0; i < count; ++i)
    queries[i] = {places[i] ? &library : nullptr, places[i].value_or(0)};
  const auto symbols = elf::symbolize(queries);
  std::array<std::vector<std::byte>, count> code;
  for (std::size_t i = 0; i < count; ++i) {
    const elf::Symbol* const symbol = symbols[i];
    if (symbol == nullptr || symbol->start != *places[i]) continue;
    code[i].resize(std::min<std::uint64_t>(symbol->size, getter_bytes));
    if (!library.read_va(*places[i], code[i])) code[i].clear();
  }
  return code;
}

Layout as_layout(const KnownLayout& known, LayoutFrom from) {
  Layout layout;
  layout.from = from;
  layout.comm_size = known.comm_size;
  layout.sub_size = known.sub_size;
  layout.peer_size = known.peer_size;
  layout.offsets = known.offsets;
  return layout;
}

// "2.27.7" of the text that NCCL prints at its start, out of a library's constants; empty: none, or several.
// RCCL, whose structures have further members, has another text.
std::string release_in(std::span<const std::byte> constants) {
  const std::string_view text(reinterpret_cast<const char*>(constants.data()), constants.size());
  constexpr std::string_view before = "NCCL version ";
  std::string found;
  for (std::size_t at = text.find(before); at != text.npos; at = text.find(before, at + 1)) {
    if (at > 0 && text[at - 1] != '\0') continue;
    const std::size_t begin = at + before.size();
    const std::size_t end = text.find_first_not_of("0123456789.", begin);
    const std::string_view release =
        text.substr(begin, end == text.npos ? text.npos : end - begin).substr(0, max_release);
    if (std::ranges::count(release, '.') != 2) continue;  // a format, or words of something else
    if (!found.empty() && found != release) return {};
    found = release;
  }
  return found;
}

}  // namespace

std::optional<Layout> layout_from_dwarf(const elf::Module& library, Deadline deadline) {
  const auto names = structure_names();
  const dwarf::Structures structures = dwarf::find_structures(library, names, most_units, deadline);
  Layout layout;
  layout.from = LayoutFrom::dwarf;
  for (const FieldName& each : fields) {
    const dwarf::Structure* const structure = find(structures, each.structure);
    if (structure == nullptr) continue;
    const auto offset = structure->offset(each.member);
    if (offset && *offset < max_comm) layout.set(each.field, *offset);
  }
  if (const auto* const comm = find(structures, "ncclComm"); comm != nullptr && comm->size <= max_comm) {
    layout.comm_size = static_cast<std::uint32_t>(comm->size);
  }
  if (const auto* const sub = find(structures, "ncclProxySubArgs"); sub != nullptr && sub->size <= max_comm) {
    layout.sub_size = static_cast<std::uint32_t>(sub->size);
  }
  if (const auto* const peer = find(structures, "ncclPeerInfo"); peer != nullptr && peer->size <= max_comm) {
    layout.peer_size = static_cast<std::uint32_t>(peer->size);
  }
  return layout.is_usable() ? std::optional(layout) : std::nullopt;
}

std::optional<Layout> layout_from_table(const elf::Module& library) {
  const std::string build_id = library.build_id_hex();
  for (const KnownLayout& known : known_layouts()) {
    if (!build_id.empty() && known.build_id == build_id) return as_layout(known, LayoutFrom::table);
  }
  return std::nullopt;
}

// Another build of the same sources by the same rules of the ABI has the same offsets. That it is one is seen
// where the exported functions read the members that they should; that nobody has added any to a
// communicator, later by the mark at its end, which there is since 2.21.
std::optional<Layout> layout_from_release(const elf::Module& library, const Layout& seen) {
  const elf::Section* const constants = library.section(".rodata");
  if (constants == nullptr) return std::nullopt;
  const auto bytes = library.section_bytes(*constants, max_constants);
  const std::string release = bytes ? release_in(*bytes) : std::string();
  for (const KnownLayout& known : known_layouts()) {
    if (release.empty() || known.release != release) continue;
    const Layout layout = as_layout(known, LayoutFrom::release);
    bool same = layout.has(Field::end_magic);
    for (const FieldName& each : fields) {
      same = same && (!seen.has(each.field) || seen.offset(each.field) == layout.offset(each.field));
    }
    if (same) return layout;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> load_displacement(std::span<const std::byte> code, bool only_one) {
  const auto byte = [code](std::size_t i) { return std::to_integer<unsigned>(code[i]); };
  std::set<std::uint32_t> found;
  for (std::size_t i = 0; i + 7 <= code.size(); ++i) {
    if (byte(i) != 0x8b) continue;
    const unsigned prefix = i > 0 ? byte(i - 1) : 0;
    const bool is_rex = (prefix & 0xf0) == 0x40;
    if (is_rex && (prefix & 8) != 0) continue;  // REX.W: a pointer is loaded
    // mod 10: base + disp32, and with a base of 4 one more byte, which here says "no index".
    const unsigned model = byte(i + 1);
    if (model >> 6 != 2) continue;
    const bool has_more = (model & 7) == 4;
    if (has_more && byte(i + 2) != 0x24) continue;
    if (has_more && (!is_rex || (prefix & 1) == 0)) continue;  // the stack pointer, not r12
    std::uint32_t displacement;
    std::memcpy(&displacement, code.data() + i + (has_more ? 3 : 2), sizeof displacement);
    // Smaller ones lead to other objects, negative ones into the frame.
    if (displacement < 0x100 || displacement >= max_comm || displacement % 4 != 0) continue;
    found.insert(displacement);
    i += 5;
  }
  if (found.empty() || (only_one && found.size() != 1)) return std::nullopt;
  return *found.rbegin();
}

// The exported functions that read one member each have exactly one such load, in 2.18.1 to 2.32.3; in all of
// them the hash stands before the rank.
std::optional<Layout> layout_from_code(elf::Module& library) {
  if (library.machine() != elf::Machine::x86_64) return std::nullopt;
  auto code = code_of<4>(
      library, {"pncclCommUserRank", "pncclCommCount", "pncclCommCuDevice", "pncclCommGetAsyncError"});
  if (code[0].empty()) {  // RCCL has no second names
    code = code_of<4>(library,
                      {"ncclCommUserRank", "ncclCommCount", "ncclCommCuDevice", "ncclCommGetAsyncError"});
  }
  const auto rank = load_displacement(code[0], true);
  const auto n_ranks = load_displacement(code[1], true);
  const auto device = load_displacement(code[2], true);
  if (!rank || !n_ranks || !device || *rank < 8 || *n_ranks != *rank + 4 || *device != *rank + 8) {
    return std::nullopt;
  }
  Layout layout;
  layout.from = LayoutFrom::disassembly;
  layout.set(Field::comm_hash, *rank - 8);
  layout.set(Field::rank, *rank);
  layout.set(Field::n_ranks, *n_ranks);
  layout.set(Field::cuda_device, *device);
  const auto async = load_displacement(code[3], false);
  if (async && *async > *rank) layout.set(Field::async_result, *async);
  return layout;
}

Layout layout_of_fingerprint(bool nvml) {
  Layout layout;
  layout.from = LayoutFrom::fingerprint;
  layout.set(Field::comm_hash, 0);
  layout.set(Field::rank, 8);
  layout.set(Field::n_ranks, 12);
  layout.set(Field::cuda_device, 16);
  if (nvml) layout.set(Field::nvml_device, 20);
  layout.set(Field::bus_id, nvml ? 40 : 32);
  return layout;
}

Layout find_layout(elf::Module& library, Deadline deadline) {
  if (auto layout = layout_from_dwarf(library, deadline)) return *layout;
  if (auto layout = layout_from_table(library)) return *layout;
  if (const auto seen = layout_from_code(library)) return layout_from_release(library, *seen).value_or(*seen);
  return layout_of_fingerprint(true);
}

}  // namespace hangtrace::nccl
