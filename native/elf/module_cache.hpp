#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "elf/module.hpp"
#include "memory/reader.hpp"
#include "proc/maps.hpp"

namespace hangtrace::elf {

/// Modules of all processes, each opened once. Copies of one file (the same library in several containers)
/// are one module: those of equal build-id, size, head and tail. Lives as long as the engine; a module is
/// never dropped, so a `Module*` stays valid as long as the cache (a file that changed on disk gets a second
/// module). From several threads, of which one at a time opens a file.
class ModuleCache {
 public:
  /// The module mapped at `mapping` in process `pid`. Tries map_files (exact even for deleted and memfd
  /// files, needs a capability), then the path below the process's own root and below ours, its exe link and
  /// its descriptors (each taken only if it is the same inode, or if memory shows that it holds what is
  /// mapped), then the image in memory.
  /// `unlisted`: what `mappings` leaves out; nullptr: nothing.
  OpenedModule open(const std::string& proc_root, int pid, const std::vector<proc::Mapping>& mappings,
                    const proc::Mapping& mapping, const memory::Reader& reader,
                    proc::UnlistedMappings* unlisted = nullptr);
  /// Different modules, without those replaced on disk meanwhile.
  std::size_t size() const;

 private:
  using FileKey = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>;  // device major, minor, inode
  struct File {
    OpenedModule opened;             // shared by all copies
    std::shared_ptr<Module> itself;  // this copy: keeps its inode from being reused
  };
  using CopyKey = std::pair<std::string, std::uint64_t>;  // build-id, size
  struct Image {
    std::vector<std::byte> bytes;
    OpenedModule opened;
  };
  OpenedModule open_vdso(const proc::Mapping& mapping, const memory::Reader& reader);
  OpenedModule share(std::shared_ptr<Module> module);
  mutable std::mutex mutex_;  // of all that follows
  std::map<FileKey, File> files_;
  std::map<CopyKey, std::shared_ptr<Module>> copies_;
  std::vector<Image> images_;  // of the vdso
  std::vector<std::shared_ptr<Module>> retired_;
};

}  // namespace hangtrace::elf
