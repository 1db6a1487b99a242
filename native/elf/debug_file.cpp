#include "elf/debug_file.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "elf/cursor.hpp"
#include "elf/open.hpp"

namespace hangtrace::elf {

namespace {

constexpr std::uint64_t max_link = 4096;
constexpr std::uint64_t max_checksummed = 64 << 20;  // a tenth of a second
constexpr std::uint32_t crc_polynomial = 0xedb88320;

constexpr auto crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? value >> 1 ^ crc_polynomial : value >> 1;
    table[i] = value;
  }
  return table;
}();

struct DebugLink {
  std::string name;
  std::uint32_t crc;
};

// A file name, padding to 4 bytes and the CRC-32 of that file.
std::optional<DebugLink> debug_link(const Module& module) {
  const Section* section = module.section(".gnu_debuglink");
  const auto bytes = section != nullptr ? module.section_bytes(*section, max_link) : std::nullopt;
  if (!bytes) return std::nullopt;
  Cursor cursor(*bytes);
  DebugLink link{std::string(cursor.cstring()), 0};
  cursor.seek((cursor.position() + 3) / 4 * 4);
  link.crc = cursor.value<std::uint32_t>();
  const bool usable = cursor.ok() && !link.name.empty() && link.name.find('/') == std::string::npos;
  return usable ? std::optional(link) : std::nullopt;
}

std::optional<std::uint32_t> crc_of(const Source& source) {
  if (source.size() > max_checksummed) return std::nullopt;
  std::vector<std::byte> part(256 << 10);
  std::uint32_t crc = ~std::uint32_t{0};
  for (std::uint64_t offset = 0; offset < source.size();) {
    const std::size_t count = source.read_some(offset, part);
    if (count == 0) return std::nullopt;
    for (const std::byte byte : std::span(part).first(count))
      crc = crc >> 8 ^ crc_table[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
    offset += count;
  }
  return ~crc;
}

bool belongs(const Module& file, const Module& module, const std::optional<DebugLink>& link) {
  if (file.machine() != module.machine()) return false;
  if (!module.build_id().empty()) return std::ranges::equal(file.build_id(), module.build_id());
  return link && file.build_id().empty() && crc_of(file.bytes().source()) == link->crc;
}

std::vector<std::string> places(const Module& module, const std::optional<DebugLink>& link) {
  std::vector<std::string> paths;
  const std::string id = module.build_id_hex();
  if (id.size() > 2)
    paths.push_back("/usr/lib/debug/.build-id/" + id.substr(0, 2) + "/" + id.substr(2) + ".debug");
  const std::size_t slash = module.path().rfind('/');
  if (link && slash != std::string::npos && module.path().front() == '/') {
    const std::string directory = module.path().substr(0, slash + 1);
    paths.push_back(directory + link->name);
    paths.push_back(directory + ".debug/" + link->name);
    paths.push_back("/usr/lib/debug" + directory + link->name);
  }
  return paths;
}

}  // namespace

std::shared_ptr<Module> find_debug_file(const Module& module, std::span<const std::string> roots) {
  const auto link = debug_link(module);
  const std::vector<std::string> paths = places(module, link);
  for (const std::string& root : roots) {
    for (const std::string& path : paths) {
      auto source = open_below(root, path);
      if (!source) continue;
      OpenedModule opened = Module::open(std::move(source), path);
      if (opened.module && belongs(*opened.module, module, link)) return opened.module;
    }
  }
  return nullptr;
}

const Module* Module::separate_debug_file() const {
  if (!debug_file_tried_) {
    debug_file_tried_ = true;
    const std::array<std::string, 2> roots{root_, "/"};
    debug_file_ = find_debug_file(*this, std::span(roots).subspan(root_.empty() ? 1 : 0));
  }
  return debug_file_.get();
}

}  // namespace hangtrace::elf
