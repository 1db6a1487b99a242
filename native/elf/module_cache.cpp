#include "elf/module_cache.hpp"

#include <dirent.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>

#include "elf/open.hpp"
#include "elf/same_file.hpp"

namespace hangtrace::elf {

namespace {

constexpr std::size_t max_vdso = 1 << 20;
constexpr std::size_t max_images = 16;
constexpr std::uint64_t max_image = 64 << 20;
constexpr std::size_t max_descriptors = 4096;

std::unique_ptr<Source> open_descriptor(const std::string& process, const proc::Mapping& mapping) {
  const std::string directory = process + "/fd";
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(directory.c_str()), &::closedir);
  if (!list) return nullptr;
  for (std::size_t count = 0; count < max_descriptors; ++count) {
    const dirent* entry = ::readdir(list.get());
    if (entry == nullptr) return nullptr;
    if (entry->d_name[0] == '.') continue;
    auto source = open_regular(directory + "/" + entry->d_name);
    if (source && is_mapped(*source, mapping)) return source;
  }
  return nullptr;
}

struct Found {
  std::unique_ptr<Source> source;
  std::optional<Address> image;  // copied from memory, where the file begins at this address
};

// What of the file is mapped read-only, at its place in the file.
Found copy_image(const std::vector<proc::Mapping>& mappings, const proc::Mapping& mapping,
                 const memory::Reader& reader) {
  std::vector<std::byte> image;
  Address begin = 0;
  for (const proc::Mapping& part : mappings) {
    const bool same = part.inode == mapping.inode && part.dev_major == mapping.dev_major &&
                      part.dev_minor == mapping.dev_minor;
    if (!same || part.writable || !part.readable || part.end <= part.start) continue;
    const std::uint64_t size = part.end - part.start;
    if (part.offset > max_image || size > max_image - part.offset) continue;
    if (image.size() < part.offset + size) image.resize(part.offset + size);
    reader.read(part.start, std::span(image).subspan(part.offset, size));
    if (part.offset == 0 && begin == 0) begin = part.start;
  }
  if (image.empty()) return {};
  return {std::make_unique<BufferSource>(std::move(image)), begin};
}

std::string map_files_path(const std::string& process, const proc::Mapping& mapping) {
  char range[48];
  std::snprintf(range, sizeof range, "/map_files/%llx-%llx", static_cast<unsigned long long>(mapping.start),
                static_cast<unsigned long long>(mapping.end));
  return process + range;
}

Found open_file(const std::string& process, const std::vector<proc::Mapping>& listed,
                const proc::Mapping& mapping, const memory::Reader& reader,
                proc::UnlistedMappings* unlisted) {
  if (auto source = open_regular(map_files_path(process, mapping))) return {std::move(source), std::nullopt};
  // What of the file is mapped around its code.
  const auto all = [&]() -> const std::vector<proc::Mapping>& {
    return unlisted != nullptr ? unlisted->all() : listed;
  };
  const auto right = [&](const FileSource* source) {
    return source != nullptr &&
           (is_mapped(*source, mapping) || holds_what_is_mapped(*source, all(), mapping, reader));
  };
  if (!mapping.deleted && mapping.path.starts_with('/')) {
    // A path is shown from our root, and from the target's if that is in another mount namespace.
    for (const std::string& root : {process + "/root", std::string("/")}) {
      if (auto source = open_below(root, mapping.path); right(source.get()))
        return {std::move(source), std::nullopt};
    }
  }
  if (auto source = open_regular(process + "/exe"); source && is_mapped(*source, mapping))
    return {std::move(source), std::nullopt};
  if (mapping.deleted) {
    if (auto source = open_descriptor(process, mapping)) return {std::move(source), std::nullopt};
  }
  return copy_image(all(), mapping, reader);
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

OpenedModule ModuleCache::share(std::shared_ptr<Module> module) {
  if (module->build_id().empty()) return {std::move(module), {}};
  const CopyKey key{module->build_id_hex(), module->bytes().source().size()};
  std::shared_ptr<Module>& first = copies_[key];
  const bool usable = first && !first->bytes().source().changed() &&
                      same_head_and_tail(first->bytes().source(), module->bytes().source());
  if (!usable) first = std::move(module);
  return {first, {}};
}

std::size_t ModuleCache::size() const {
  const std::lock_guard lock(mutex_);
  std::set<const Module*> modules;
  for (const auto& [key, file] : files_) modules.insert(file.opened.module.get());
  for (const Image& image : images_) modules.insert(image.opened.module.get());
  return modules.size();
}

OpenedModule ModuleCache::open(const std::string& proc_root, int pid,
                               const std::vector<proc::Mapping>& mappings, const proc::Mapping& mapping,
                               const memory::Reader& reader, proc::UnlistedMappings* unlisted) {
  const std::lock_guard lock(mutex_);
  if (mapping.path == "[vdso]") return open_vdso(mapping, reader);
  if (mapping.inode == 0) return {nullptr, "no file is mapped there"};
  const std::string process = proc_root + "/" + std::to_string(pid);
  const FileKey key{mapping.dev_major, mapping.dev_minor, mapping.inode};
  const auto found = files_.find(key);
  if (found != files_.end()) {
    const File& file = found->second;
    if (!file.itself || !file.itself->bytes().source().changed()) {
      if (file.opened.module) file.opened.module->set_root(process + "/root");
      return file.opened;
    }
    retired_.push_back(file.itself);
    retired_.push_back(file.opened.module);
    files_.erase(found);
  }
  Found file = open_file(process, mappings, mapping, reader, unlisted);
  // Another process may have the right to open it, so this failure is not kept.
  if (!file.source) return {nullptr, "the file cannot be opened or is another one now"};
  OpenedModule opened = file.image ? Module::open_image(std::move(file.source), mapping.path, *file.image)
                                   : Module::open(std::move(file.source), mapping.path);
  const std::shared_ptr<Module> itself = opened.module;
  if (opened.module) opened = share(std::move(opened.module));
  if (opened.module) opened.module->set_root(process + "/root");
  files_.emplace(key, File{opened, itself});
  return opened;
}

}  // namespace hangtrace::elf
