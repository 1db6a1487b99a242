#include "elf/process_modules.hpp"

#include <unistd.h>

#include <algorithm>

#include "elf/symbols.hpp"

namespace hangtrace::elf {

namespace {

constexpr std::size_t max_problems = 16;

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
                               const std::vector<proc::Mapping>& mappings, const memory::Reader& reader)
    : cache_(cache),
      proc_root_(std::move(proc_root)),
      pid_(pid),
      mappings_(mappings),
      reader_(reader),
      slots_(mappings.size()) {}

const ProcessModules::Slot& ProcessModules::resolve(std::size_t index) {
  Slot& slot = slots_[index];
  if (slot.tried) return slot;
  slot.tried = true;
  const proc::Mapping& mapping = mappings_[index];
  if (mapping.inode == 0 && mapping.path != "[vdso]") return slot;
  const OpenedModule opened = cache_.open(proc_root_, pid_, mappings_, mapping, reader_);
  const Segment* segment = opened.module ? segment_of(*opened.module, mapping) : nullptr;
  if (segment != nullptr) {
    slot.module = opened.module.get();
    slot.bias = mapping.start - mapping.offset + segment->offset - segment->va;
  } else if (problems_.size() < max_problems) {
    problems_.push_back(mapping.path + ": " + (opened.module ? "mapped at an odd offset" : opened.problem));
  }
  return slot;
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
