#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "elf/module.hpp"
#include "memory/reader.hpp"
#include "proc/maps.hpp"

namespace hangtrace::elf {

/// Modules of all processes, each opened once. Lives as long as the engine; a module is never dropped, so a
/// `Module*` stays valid as long as the cache (a file that changed on disk gets a second module).
class ModuleCache {
 public:
  /// The module mapped at `mapping` in process `pid`. Tries map_files (exact even for deleted and memfd
  /// files, needs a capability), then the path below the process's own root, its exe link and its descriptors
  /// (each taken only if it is the same inode or its bytes equal the mapped ones), then the image in memory.
  OpenedModule open(const std::string& proc_root, int pid, const std::vector<proc::Mapping>& mappings,
                    const proc::Mapping& mapping, const memory::Reader& reader);
  std::size_t size() const { return files_.size() + images_.size(); }

 private:
  using FileKey = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>;  // device major, minor, inode
  struct Image {
    std::vector<std::byte> bytes;
    OpenedModule opened;
  };
  OpenedModule open_vdso(const proc::Mapping& mapping, const memory::Reader& reader);
  std::map<FileKey, OpenedModule> files_;
  std::vector<Image> images_;  // of the vdso
  std::vector<std::shared_ptr<Module>> retired_;
};

}  // namespace hangtrace::elf
