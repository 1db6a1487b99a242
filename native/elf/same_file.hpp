#pragma once

#include <vector>

#include "elf/source.hpp"
#include "memory/reader.hpp"
#include "proc/maps.hpp"

namespace hangtrace::elf {

/// Whether a file holds what is mapped, judged by memory: pages spread over its executable mappings, and that
/// with the file's head (headers, and as a rule the build-id). For file systems on which the inode tells
/// nothing, and never true for a file of the same name put in its place later.
bool holds_what_is_mapped(const Source& source, const std::vector<proc::Mapping>& mappings,
                          const proc::Mapping& mapping, const memory::Reader& reader);

/// The same for two files of one build-id and size: head and tail are the same.
bool same_head_and_tail(const Source& one, const Source& other);

}  // namespace hangtrace::elf
