#include "python/runtime.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "python/objects.hpp"
#include "python/threads.hpp"

namespace hangtrace::python {
namespace {

// One mapping of each file with code, those named like Python first.
std::vector<const proc::Mapping*> candidates(std::span<const proc::Mapping> mappings) {
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>> seen;
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>> with_code;
  auto identity = [](const proc::Mapping& one) {
    return std::tuple(one.dev_major, one.dev_minor, one.inode);
  };
  for (const proc::Mapping& mapping : mappings) {
    if (mapping.executable && mapping.inode != 0) with_code.insert(identity(mapping));
  }
  std::vector<const proc::Mapping*> result;
  for (const proc::Mapping& mapping : mappings) {
    if (with_code.contains(identity(mapping)) && seen.insert(identity(mapping)).second)
      result.push_back(&mapping);
  }
  auto rank = [](const proc::Mapping* mapping) {
    const std::string_view path = mapping->path;
    const std::string_view name = path.substr(path.rfind('/') + 1);
    if (name.starts_with("libpython")) return 0;
    if (name.starts_with("python")) return 1;
    if (name.find(".so") == std::string_view::npos) return 2;  // an executable
    return 3;
  };
  std::stable_sort(result.begin(), result.end(), [&](auto* a, auto* b) { return rank(a) < rank(b); });
  return result;
}

// Builds that this reader knows from their headers only.
bool never_run(const Layout& layout) {
  return layout.free_threaded && layout.minor >= 14;
}

std::string version_text(std::uint32_t hex) {
  std::string text = std::to_string(hex >> 24) + "." + std::to_string((hex >> 16) & 0xff) + "." +
                     std::to_string((hex >> 8) & 0xff);
  const std::uint32_t level = (hex >> 4) & 0xf;  // 0xa alpha, 0xb beta, 0xc candidate, 0xf final
  if (level >= 0xa && level <= 0xc)
    text += (level == 0xc ? "rc" : level == 0xb ? "b" : "a") + std::to_string(hex & 0xf);
  return text;
}

// sys.version up to the first blank, read with a layout that may be the wrong one.
std::optional<std::string> sys_version(const memory::Reader& reader, const Layout& layout, Address runtime) {
  std::string problem;
  const std::vector<Interpreter> interpreters = read_interpreters(reader, layout, runtime, problem);
  if (interpreters.empty()) return std::nullopt;
  Objects objects(reader, layout);
  auto found = objects.find(interpreters.front().sysdict, "version");
  auto text = found ? objects.text(*found) : std::nullopt;
  if (!text) return std::nullopt;
  return text->substr(0, text->find(' '));
}

// 3.8 to 3.10 do not say their version in a symbol: the layout is right with which sys.version can be read
// and names the very version that the layout is of.
void identify_old(const memory::Reader& reader, Runtime& runtime) {
  for (int minor : {8, 9, 10}) {
    const Layout* layout = known_layout(minor);
    if (layout == nullptr) continue;
    auto version = sys_version(reader, *layout, runtime.address);
    const std::string wanted = "3." + std::to_string(minor) + ".";
    if (version && version->starts_with(wanted)) {
      runtime.version = *version;
      runtime.layout = *layout;
      runtime.layout_from = "table 3." + std::to_string(minor);
      return;
    }
  }
  runtime.problem = "a Python runtime older than 3.11, but none of 3.8 to 3.10";
}

void identify(const memory::Reader& reader, Runtime& runtime, std::optional<Address> version_symbol) {
  std::vector<std::byte> head(kDebugOffsetsSize);
  if (reader.read(runtime.address, head)) {
    DebugOffsets offsets = read_debug_offsets(head);
    if (offsets.version_hex != 0) {
      runtime.version = version_text(offsets.version_hex);
      runtime.layout = offsets.layout;
      runtime.layout_from = "_Py_DebugOffsets";
      if (runtime.layout && never_run(*runtime.layout)) runtime.layout_from += ", untested build";
      runtime.problem = offsets.problem;
      return;
    }
  }
  if (!version_symbol) return identify_old(reader, runtime);
  const auto hex = reader.read_value<std::uint64_t>(*version_symbol);  // Py_Version, since 3.11
  if (!hex || (*hex >> 24) != 3) {
    runtime.problem = "Py_Version is not readable";
    return;
  }
  runtime.version = version_text(static_cast<std::uint32_t>(*hex));
  const int minor = static_cast<int>((*hex >> 16) & 0xff);
  const Layout* layout = known_layout(minor);
  if (layout == nullptr || minor >= 13) {
    runtime.problem = "the layout of Python 3." + std::to_string(minor) + " is not known";
    return;
  }
  runtime.layout = *layout;
  runtime.layout_from = "table 3." + std::to_string(minor);
}

}  // namespace

std::optional<Runtime> find_runtime(const memory::Reader& reader, std::span<const proc::Mapping> mappings,
                                    const SymbolFinder& find) {
  for (const proc::Mapping* mapping : candidates(mappings)) {
    auto address = find(*mapping, "_PyRuntime");
    if (!address || !plausible(*address)) continue;
    Runtime runtime;
    runtime.address = *address;
    identify(reader, runtime, find(*mapping, "Py_Version"));
    if (const auto secret = find(*mapping, "_Py_HashSecret")) {
      runtime.hash_secret = reader.read_value<StrHash::Secret>(*secret);
    }
    return runtime;
  }
  return std::nullopt;
}

}  // namespace hangtrace::python
