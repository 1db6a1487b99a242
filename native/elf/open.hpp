#pragma once

#include <memory>
#include <string>

#include "elf/source.hpp"
#include "proc/maps.hpp"

// Opening what a target names. Only regular files: opening a device or a FIFO can block or have effects.
namespace hangtrace::elf {

/// nullptr if there is no such regular file, or it may not be read.
std::unique_ptr<FileSource> open_regular(const std::string& path);

/// `path` as a process sees it whose root directory is `root` ("/proc/PID/root", or "/"): absolute symbolic
/// links and ".." stay inside (openat2, Linux 5.6; before that a link may lead out, so verify what it holds).
std::unique_ptr<FileSource> open_below(const std::string& root, const std::string& path);

/// Whether it is the very file that is mapped, by device and inode. Some file systems (overlay, btrfs) show
/// another device or inode in maps than in stat: then false although it is.
bool is_mapped(const FileSource& source, const proc::Mapping& mapping);

}  // namespace hangtrace::elf
