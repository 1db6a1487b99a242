#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proc/maps.hpp"
#include "proc/record_array.hpp"

namespace hangtrace::proc {

/// One mapping without its path. Plain, so that an array of it can be handed out as it is.
struct MapRecord {
  std::uint64_t start, end, offset, device, inode;  // device as st_dev
  std::uint64_t flags;                              // map_read and so on
  std::uint64_t path;                               // index into MapRecords::paths
};

inline constexpr std::uint64_t map_read = 1;
inline constexpr std::uint64_t map_write = 2;
inline constexpr std::uint64_t map_exec = 4;
inline constexpr std::uint64_t map_shared = 8;
inline constexpr std::uint64_t map_deleted = 16;

/// Mappings in the order of the text, and the distinct paths.
struct MapRecords {
  RecordArray<MapRecord> records;
  std::vector<std::string> paths;
};

/// Fills records in; keeps each path once.
class MapRecordBuilder {
 public:
  void fill(const Mapping& mapping, MapRecord& record);
  std::vector<std::string> take_paths() { return std::move(paths_); }

 private:
  std::vector<std::string> paths_;
  std::unordered_map<std::string, std::size_t> indices_;
  std::size_t last_ = 0;
};

MapRecords parse_map_records(std::string_view text);
/// As read_maps().
std::optional<MapRecords> read_map_records(const std::string& proc_root, int pid);

}  // namespace hangtrace::proc
