#include "nccl/heaps.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "elf/imports.hpp"
#include "elf/symbols.hpp"
#include "proc/files.hpp"

namespace hangtrace::nccl {

namespace {

using memory::Address;

constexpr Address page = 4096;
constexpr Address heap_size = Address{64} << 20;  // and alignment: HEAP_MAX_SIZE of glibc's malloc/arena.c
// What is as large may get pages of its own (M_MMAP_THRESHOLD, which never sinks by itself below its
// default).
constexpr std::uint64_t smallest_mapped = 128 << 10;
// Where the main heap has no room to grow, it goes on elsewhere. The threshold is at most 32 MiB.
constexpr Address room = Address{64} << 20;
// An object with its header, and what rounding it up may take.
constexpr std::uint64_t overhead = 64;

// struct _heap_info of malloc/arena.c.
struct HeapInfo {
  Address arena;
  Address previous;
  std::uint64_t size;
  std::uint64_t accessible;
};

bool is_plausible(const HeapInfo& info, Address at) {
  if (info.size < page || info.size % page != 0 || info.size > heap_size) return false;
  if (info.accessible < info.size || info.accessible > heap_size || info.accessible % page != 0) return false;
  // The arena lies behind the header of its first heap.
  const Address inside = info.arena % heap_size;
  if (inside < sizeof(HeapInfo) || inside > 256) return false;
  return info.previous == 0 ? info.arena - inside == at : info.previous % heap_size == 0;
}

bool is_private_memory(const proc::Mapping& mapping) {
  return mapping.readable && mapping.writable && !mapping.shared && mapping.inode == 0;
}

proc::Mapping part(const proc::Mapping& mapping, Address start, Address end) {
  proc::Mapping result = mapping;
  result.start = start;
  result.end = end;
  return result;
}

// That the allocator is set to put small objects elsewhere, too, can be said in the environment.
bool has_usual_settings(const std::string& proc_root, int pid) {
  const auto environment = proc::read_file(proc::process_path(proc_root, pid, "environ"));
  if (!environment) return false;
  for (const std::string_view setting :
       {"MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold", "glibc.malloc.hugetlb"}) {
    if (environment->find(setting) != std::string::npos) return false;
  }
  const auto limits = proc::read_file(proc::process_path(proc_root, pid, "limits"));
  if (!limits) return false;
  const auto at = limits->find("Max data size");
  return at != std::string::npos && limits->find("unlimited", at) < limits->find('\n', at);
}

bool is_glibc(elf::ProcessModules& modules, Address function) {
  const auto place = modules.locate_code(function);
  return place && place->module != nullptr &&
         elf::find_symbol(*place->module, "gnu_get_libc_version").has_value() &&
         elf::find_symbol(*place->module, "malloc").has_value();
}

}  // namespace

std::optional<std::vector<proc::Mapping>> heap_mappings(const memory::Reader& memory,
                                                        const std::vector<proc::Mapping>& mappings,
                                                        const PresentPages& pages) {
  std::vector<proc::Mapping> heaps;
  bool has_room = false;
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    const proc::Mapping& mapping = mappings[i];
    if (!is_private_memory(mapping)) continue;
    if (mapping.path == "[heap]") {
      heaps.push_back(mapping);
      has_room = i + 1 == mappings.size() || mappings[i + 1].start - mapping.end >= room ||
                 mappings[i + 1].path == "[heap]";
      continue;
    }
    for (Address at = (mapping.start + heap_size - 1) / heap_size * heap_size; at < mapping.end;
         at += heap_size) {
      if (pages.within(at, at + page).empty()) continue;
      const auto info = memory.read_value<HeapInfo>(at);
      if (!info || !is_plausible(*info, at)) continue;
      heaps.push_back(part(mapping, at, std::min(mapping.end, at + info->accessible)));
    }
  }
  return has_room ? std::optional(std::move(heaps)) : std::nullopt;
}

std::optional<std::vector<proc::Mapping>> malloc_heaps(elf::ProcessModules& modules,
                                                       const elf::Location& module, const PresentPages& pages,
                                                       const std::string& proc_root, int pid,
                                                       std::uint64_t size) {
  if (size == 0 || size + overhead >= smallest_mapped) return std::nullopt;
  constexpr std::array<std::string_view, 2> names = {"malloc", "calloc"};
  const std::vector<Address> slots = elf::import_slots(*module.module, names);
  bool is_used = false;
  for (const Address slot : slots) {
    const auto function = modules.reader().read_value<Address>(module.bias + slot);
    if (!function) return std::nullopt;
    const auto place = modules.locate_code(*function);
    if (place && place->module == module.module) continue;  // bound late, and never called
    if (!is_glibc(modules, *function)) return std::nullopt;
    is_used = true;
  }
  if (slots.empty()) return std::nullopt;
  if (!is_used) return std::vector<proc::Mapping>{};
  if (!has_usual_settings(proc_root, pid)) return std::nullopt;
  return heap_mappings(modules.reader(), modules.mappings(), pages);
}

}  // namespace hangtrace::nccl
