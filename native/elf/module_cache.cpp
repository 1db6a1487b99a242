#include "elf/module_cache.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>

#include "proc/files.hpp"

namespace hangtrace::elf {

namespace {

constexpr std::size_t max_vdso = 1 << 20;
constexpr std::size_t max_images = 16;
constexpr std::uint64_t max_image = 64 << 20;
constexpr std::size_t max_descriptors = 4096;

// Opens only regular files: opening a device or a FIFO can block or have effects.
std::unique_ptr<FileSource> open_regular(const std::string& path, const proc::Mapping* same_file) {
  const proc::Descriptor handle(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!handle || ::fstat(handle.get(), &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  if (same_file != nullptr &&
      (status.st_ino != same_file->inode || major(status.st_dev) != same_file->dev_major ||
       minor(status.st_dev) != same_file->dev_minor)) {
    return nullptr;
  }
  const std::string reopen = "/proc/self/fd/" + std::to_string(handle.get());
  const int fd = ::open(reopen.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  return fd < 0 ? nullptr : FileSource::adopt(fd);
}

// Whether the first page of a read-only mapping is what the file holds there. Used where the inode of the
// mapping and that of the file are not comparable (overlay and other stacked file systems).
bool same_bytes(const FileSource& source, const proc::Mapping& mapping, const memory::Reader& reader) {
  if (mapping.writable) return false;
  std::array<std::byte, 4096> mapped;
  std::array<std::byte, 4096> stored{};
  const std::size_t count = source.read_some(mapping.offset, stored);
  return count != 0 && reader.read(mapping.start, mapped) &&
         std::memcmp(mapped.data(), stored.data(), count) == 0;
}

std::unique_ptr<Source> open_descriptor(const std::string& process, const proc::Mapping& mapping) {
  const std::string directory = process + "/fd";
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(directory.c_str()), &::closedir);
  if (!list) return nullptr;
  for (std::size_t count = 0; count < max_descriptors; ++count) {
    const dirent* entry = ::readdir(list.get());
    if (entry == nullptr) return nullptr;
    if (entry->d_name[0] == '.') continue;
    if (auto source = open_regular(directory + "/" + entry->d_name, &mapping)) return source;
  }
  return nullptr;
}

// What of the file is mapped read-only, at its place in the file.
std::unique_ptr<Source> copy_image(const std::vector<proc::Mapping>& mappings, const proc::Mapping& mapping,
                                   const memory::Reader& reader) {
  std::vector<std::byte> image;
  for (const proc::Mapping& part : mappings) {
    const bool same = part.inode == mapping.inode && part.dev_major == mapping.dev_major &&
                      part.dev_minor == mapping.dev_minor;
    if (!same || part.writable || !part.readable || part.end <= part.start) continue;
    const std::uint64_t size = part.end - part.start;
    if (part.offset > max_image || size > max_image - part.offset) continue;
    if (image.size() < part.offset + size) image.resize(part.offset + size);
    reader.read(part.start, std::span(image).subspan(part.offset, size));
  }
  if (image.empty()) return nullptr;
  return std::make_unique<BufferSource>(std::move(image));
}

std::string map_files_path(const std::string& process, const proc::Mapping& mapping) {
  char range[48];
  std::snprintf(range, sizeof range, "/map_files/%llx-%llx", static_cast<unsigned long long>(mapping.start),
                static_cast<unsigned long long>(mapping.end));
  return process + range;
}

std::unique_ptr<Source> open_file(const std::string& process, const std::vector<proc::Mapping>& mappings,
                                  const proc::Mapping& mapping, const memory::Reader& reader) {
  if (auto source = open_regular(map_files_path(process, mapping), nullptr)) return source;
  if (!mapping.deleted && mapping.path.starts_with('/')) {
    const std::string path = process + "/root" + mapping.path;
    if (auto source = open_regular(path, &mapping)) return source;
    auto source = open_regular(path, nullptr);
    if (source && same_bytes(*source, mapping, reader)) return source;
  }
  if (auto source = open_regular(process + "/exe", &mapping)) return source;
  if (mapping.deleted) {
    if (auto source = open_descriptor(process, mapping)) return source;
  }
  return copy_image(mappings, mapping, reader);
}

}  // namespace

OpenedModule ModuleCache::open_vdso(const proc::Mapping& mapping, const memory::Reader& reader) {
  if (mapping.end <= mapping.start || mapping.end - mapping.start > max_vdso)
    return {nullptr, "vdso of an odd size"};
  std::vector<std::byte> image(mapping.end - mapping.start);
  if (!reader.read(mapping.start, image)) return {nullptr, "vdso cannot be read"};
  const auto same = [&image](const Image& known) {
    return known.bytes.size() == image.size() &&
           std::memcmp(known.bytes.data(), image.data(), image.size()) == 0;
  };
  const auto found = std::ranges::find_if(images_, same);
  if (found != images_.end()) return found->opened;
  if (images_.size() >= max_images) return {nullptr, "too many kinds of vdso"};
  OpenedModule opened = Module::open(std::make_unique<BufferSource>(image), mapping.path);
  return images_.emplace_back(Image{std::move(image), std::move(opened)}).opened;
}

OpenedModule ModuleCache::open(const std::string& proc_root, int pid,
                               const std::vector<proc::Mapping>& mappings, const proc::Mapping& mapping,
                               const memory::Reader& reader) {
  if (mapping.path == "[vdso]") return open_vdso(mapping, reader);
  if (mapping.inode == 0) return {nullptr, "no file is mapped there"};
  const FileKey key{mapping.dev_major, mapping.dev_minor, mapping.inode};
  const auto found = files_.find(key);
  if (found != files_.end()) {
    if (!found->second.module) return found->second;
    if (!found->second.module->bytes().source().changed()) return found->second;
    retired_.push_back(found->second.module);
    files_.erase(found);
  }
  auto source = open_file(proc_root + "/" + std::to_string(pid), mappings, mapping, reader);
  // Another process may have the right to open it, so this failure is not kept.
  if (!source) return {nullptr, "the file cannot be opened or is another one now"};
  OpenedModule opened = Module::open(std::move(source), mapping.path);
  files_.emplace(key, opened);
  return opened;
}

}  // namespace hangtrace::elf
