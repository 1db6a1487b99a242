#include "elf/process_modules.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "elf/symbols.hpp"

namespace hangtrace::elf {

namespace {

constexpr std::size_t max_problems = 16;
constexpr std::size_t max_neighbours = 4;
constexpr std::size_t compared_size = 4096;
constexpr std::uint64_t pages_compared = 8;

// Code without file: made at run time, or moved. Not the kernel's own, such as [vsyscall].
bool is_anonymous_code(const proc::Mapping& mapping) {
  const bool special = mapping.path.starts_with('[') && !mapping.path.starts_with("[anon:");
  return mapping.executable && mapping.inode == 0 && !special;
}

// Memory that is mapped twice, once to write and once to run it, needs a file: one of memory, or of no name.
bool is_generated_code(const proc::Mapping& mapping) {
  const bool of_memory = mapping.path.starts_with("/memfd:") || mapping.path == "/dev/zero";
  return is_anonymous_code(mapping) || (mapping.executable && mapping.deleted && of_memory);
}

// The load segment which this mapping shows. Two segments can share a page of the file, so first that which
// begins on the mapping's page and has the same kind of access.
const Segment* segment_of(const Module& module, const proc::Mapping& mapping) {
  static const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const Segment* best = nullptr;
  int best_score = -1;
  for (const Segment& segment : module.segments()) {
    const std::uint64_t begin = segment.offset / page * page;
    if (mapping.offset < begin ||
        mapping.offset >= segment.offset + std::max<std::uint64_t>(segment.file_size, 1)) {
      continue;
    }
    const int score = (segment.executable == mapping.executable ? 2 : 0) + (begin == mapping.offset ? 1 : 0);
    if (score > best_score) {
      best = &segment;
      best_score = score;
    }
  }
  return best;
}

}  // namespace

ProcessModules::ProcessModules(ModuleCache& cache, std::string proc_root, int pid,
                               const std::vector<proc::Mapping>& mappings, const memory::Reader& reader,
                               proc::UnlistedMappings* unlisted)
    : cache_(cache),
      proc_root_(std::move(proc_root)),
      pid_(pid),
      mappings_(mappings),
      reader_(reader),
      unlisted_(unlisted),
      slots_(mappings.size()),
      perf_map_(proc_root_, pid) {}

const ProcessModules::Slot& ProcessModules::resolve(std::size_t index) {
  Slot& slot = slots_[index];
  if (slot.tried) return slot;
  slot.tried = true;
  const proc::Mapping& mapping = mappings_[index];
  if (mapping.inode != 0 || mapping.path == "[vdso]") {
    resolve_file(index);
  } else if (is_anonymous_code(mapping)) {
    resolve_moved_text(index);
  }
  return slot;
}

void ProcessModules::resolve_file(std::size_t index) {
  Slot& slot = slots_[index];
  const proc::Mapping& mapping = mappings_[index];
  const OpenedModule opened = cache_.open(proc_root_, pid_, mappings_, mapping, reader_, unlisted_);
  const Segment* segment = opened.module ? segment_of(*opened.module, mapping) : nullptr;
  if (segment != nullptr) {
    slot.module = opened.module.get();
    slot.bias = mapping.start - mapping.offset + segment->offset - segment->va;
  } else if (problems_.size() < max_problems) {
    problems_.push_back(mapping.path + ": " + (opened.module ? "mapped at an odd offset" : opened.problem));
  }
}

// A program can move its text onto huge pages: anonymous memory, in the midst of what is mapped of the file.
void ProcessModules::resolve_moved_text(std::size_t index) {
  const std::size_t first = index - std::min(index, max_neighbours);
  const std::size_t last = std::min(mappings_.size(), index + max_neighbours + 1);
  for (std::size_t i = first; i < last; ++i) {
    if (mappings_[i].inode == 0) continue;
    const Slot& neighbour = resolve(i);
    if (neighbour.module == nullptr || !holds_text(mappings_[index], neighbour)) continue;
    slots_[index].module = neighbour.module;
    slots_[index].bias = neighbour.bias;
    return;
  }
}

// Pages spread over the mapping are those of the file at this bias.
bool ProcessModules::holds_text(const proc::Mapping& mapping, const Slot& slot) const {
  const Module& module = *slot.module;
  if (!module.is_code(mapping.start - slot.bias) && !module.is_code(mapping.end - 1 - slot.bias))
    return false;
  const std::uint64_t pages = (mapping.end - mapping.start) / compared_size;
  std::size_t same = 0;
  for (std::uint64_t i = 0; i < std::min(pages, pages_compared); ++i) {
    const Address address =
        mapping.start +
        compared_size * (pages <= pages_compared ? i : i * (pages - 1) / (pages_compared - 1));
    std::array<std::byte, compared_size> linked;
    std::array<std::byte, compared_size> mapped;
    if (!module.is_code(address - slot.bias) || !module.read_va(address - slot.bias, linked)) continue;
    if (!reader_.read(address, mapped) || linked != mapped) return false;
    ++same;
  }
  return same != 0;
}

std::vector<std::optional<JitSymbol>> ProcessModules::jit_symbols(std::span<const Address> addresses) {
  std::vector<Address> generated;
  for (const Address address : addresses) {
    const proc::Mapping* mapping = proc::find_mapping(mappings_, address);
    if (mapping != nullptr && is_generated_code(*mapping)) generated.push_back(address);
  }
  const auto found = perf_map_.names(generated);
  std::vector<std::optional<JitSymbol>> result(addresses.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < addresses.size() && next < generated.size(); ++i) {
    if (addresses[i] == generated[next]) result[i] = found[next++];
  }
  return result;
}

const proc::Mapping* ProcessModules::mapping_at(Address address) const {
  const proc::Mapping* const listed = proc::find_mapping(mappings_, address);
  return listed != nullptr || unlisted_ == nullptr ? listed : unlisted_->at(address);
}

std::optional<Location> ProcessModules::locate(Address address) {
  const proc::Mapping* mapping = proc::find_mapping(mappings_, address);
  if (mapping == nullptr) return std::nullopt;
  const Slot& slot = resolve(static_cast<std::size_t>(mapping - mappings_.data()));
  return Location{mapping, slot.module, slot.bias, address - slot.bias};
}

std::optional<Location> ProcessModules::locate_code(Address address) {
  const proc::Mapping* mapping = proc::find_mapping(mappings_, address);
  if (mapping == nullptr || !mapping->executable) return std::nullopt;
  return locate(address);
}

std::optional<Address> ProcessModules::find_symbol(const proc::Mapping& mapping, std::string_view name) {
  const auto location = locate(mapping.start);
  if (!location || location->module == nullptr) return std::nullopt;
  const auto va = elf::find_symbol(*location->module, name);
  if (!va) return std::nullopt;
  return *va + location->bias;
}

}  // namespace hangtrace::elf
