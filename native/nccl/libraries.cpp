#include "nccl/libraries.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "elf/symbols.hpp"

namespace hangtrace::nccl {

namespace {

constexpr std::array<std::string_view, 2> own_names = {"libnccl.so", "librccl.so"};
// PyTorch can be built with NCCL inside. Others are known by what their threads do.
constexpr std::array<std::string_view, 2> hosts = {"libtorch_cuda.so", "libtorch_hip.so"};
constexpr std::size_t most = 8;

bool is_named(const proc::Mapping& mapping, std::span<const std::string_view> names) {
  const std::string_view path = mapping.path;
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return std::ranges::any_of(names, [name](std::string_view each) { return name.starts_with(each); });
}

// Also the library that only calls it names these; there they are undefined.
bool defines_nccl(elf::Module& module) {
  constexpr std::array<std::string_view, 2> names = {"pncclCommCount", "ncclCommCount"};
  const auto places = elf::find_symbols(module, names);
  return places[0].has_value() || places[1].has_value();
}

}  // namespace

std::vector<elf::Location> libraries(elf::ProcessModules& modules, std::span<const std::string> told) {
  std::vector<elf::Location> own, linked;
  std::set<std::pair<std::uint64_t, std::string_view>> seen;
  for (const proc::Mapping& mapping : modules.mappings()) {
    const bool is_own = is_named(mapping, own_names);
    const bool is_told = std::ranges::find(told, mapping.path) != told.end();
    if (!is_own && !is_told && !is_named(mapping, hosts)) continue;
    if (!seen.emplace(mapping.inode, mapping.path).second) continue;
    const auto location = modules.locate(mapping.start);
    if (!location || location->module == nullptr) {
      if (is_own && own.size() < most) own.push_back({&mapping, nullptr, 0, 0});
    } else if (is_own) {
      if (own.size() < most) own.push_back(*location);
    } else if (linked.size() < most && defines_nccl(*location->module)) {
      linked.push_back(*location);
    }
  }
  return own.empty() ? linked : own;
}

}  // namespace hangtrace::nccl
