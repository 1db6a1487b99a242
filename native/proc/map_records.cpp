#include "proc/map_records.hpp"

#include <sys/sysmacros.h>

#include "proc/files.hpp"
#include "proc/scan.hpp"

namespace hangtrace::proc {

void MapRecordBuilder::fill(const Mapping& mapping, MapRecord& record) {
  // Mappings of a file lie side by side, as do those of none.
  if (paths_.empty() || paths_[last_] != mapping.path) {
    const auto [it, added] = indices_.try_emplace(mapping.path, paths_.size());
    if (added) {
      paths_.push_back(mapping.path);
    }
    last_ = it->second;
  }
  record.start = mapping.start;
  record.end = mapping.end;
  record.offset = mapping.offset;
  record.device = makedev(mapping.dev_major, mapping.dev_minor);
  record.inode = mapping.inode;
  record.flags = (mapping.readable ? map_read : 0) | (mapping.writable ? map_write : 0) |
                 (mapping.executable ? map_exec : 0) | (mapping.shared ? map_shared : 0) |
                 (mapping.deleted ? map_deleted : 0);
  record.path = last_;
}

MapRecords parse_map_records(std::string_view text) {
  MapRecords result;
  MapRecordBuilder builder;
  std::string_view line;
  Mapping mapping;
  while (next_line(text, line)) {
    if (parse_mapping(line, mapping)) {
      builder.fill(mapping, result.records.add());
    }
  }
  result.paths = builder.take_paths();
  return result;
}

std::optional<MapRecords> read_map_records(const std::string& proc_root, int pid) {
  const std::optional<std::string> text =
      read_file(process_path(proc_root, pid, "maps"), std::size_t{64} << 10);
  if (!text) {
    return std::nullopt;
  }
  return parse_map_records(*text);
}

}  // namespace hangtrace::proc
