#include "proc/maps.hpp"

#include <algorithm>

#include "proc/files.hpp"
#include "proc/scan.hpp"

namespace hangtrace::proc {

namespace {

constexpr std::string_view deleted_mark = " (deleted)";

// The kernel writes a newline inside a path as \012 (seq_file's mangle_path with "\n"); other characters,
// backslashes included, stay as they are.
void unescape_newlines(std::string_view text, std::string& path) {
  path.clear();
  while (true) {
    const std::size_t at = text.find("\\012");
    path.append(text.substr(0, at));
    if (at == std::string_view::npos) {
      return;
    }
    path.push_back('\n');
    text.remove_prefix(at + 4);
  }
}

}  // namespace

bool parse_mapping(std::string_view line, Mapping& mapping) {
  Scanner scan(line);
  char flags[4] = {};
  std::uint64_t major = 0;
  std::uint64_t minor = 0;
  if (!scan.hex(mapping.start) || !scan.skip('-') || !scan.hex(mapping.end) || !scan.skip(' ')) {
    return false;
  }
  for (char& flag : flags) {
    if (!scan.take(flag)) {
      return false;
    }
  }
  if (!scan.skip(' ') || !scan.hex(mapping.offset) || !scan.skip(' ') || !scan.hex(major) ||
      !scan.skip(':') || !scan.hex(minor) || !scan.skip(' ') || !scan.decimal(mapping.inode)) {
    return false;
  }
  scan.skip_spaces();
  mapping.readable = flags[0] == 'r';
  mapping.writable = flags[1] == 'w';
  mapping.executable = flags[2] == 'x';
  mapping.shared = flags[3] == 's';
  mapping.dev_major = static_cast<std::uint32_t>(major);
  mapping.dev_minor = static_cast<std::uint32_t>(minor);
  std::string_view path = scan.rest();
  mapping.deleted = path.ends_with(deleted_mark);
  if (mapping.deleted) {
    path.remove_suffix(deleted_mark.size());
  }
  unescape_newlines(path, mapping.path);
  return mapping.start < mapping.end;
}

std::vector<Mapping> parse_maps(std::string_view text) {
  std::vector<Mapping> mappings;
  mappings.reserve(text.size() / 96 + 1);
  std::string_view line;
  Mapping mapping;
  while (next_line(text, line)) {
    if (parse_mapping(line, mapping)) {
      mappings.push_back(std::move(mapping));
    }
  }
  // Sorted already but for what changed while it was read.
  if (!std::ranges::is_sorted(mappings, {}, &Mapping::start)) {
    std::ranges::sort(mappings, {}, &Mapping::start);
  }
  return mappings;
}

std::optional<std::vector<Mapping>> read_maps(const std::string& proc_root, int pid) {
  const std::optional<std::string> text =
      read_file(process_path(proc_root, pid, "maps"), std::size_t{64} << 10);
  if (!text) {
    return std::nullopt;
  }
  return parse_maps(*text);
}

const Mapping* find_mapping(const std::vector<Mapping>& mappings, Address address) {
  auto it = std::ranges::upper_bound(mappings, address, {}, &Mapping::start);
  if (it == mappings.begin()) {
    return nullptr;
  }
  --it;
  return address < it->end ? &*it : nullptr;
}

}  // namespace hangtrace::proc
