#include "elf/same_file.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace hangtrace::elf {

namespace {

constexpr std::uint64_t page_size = 4096;
constexpr std::uint64_t pages_each = 8;  // of a mapping

using Page = std::array<std::byte, page_size>;

bool same_page(const Source& source, const memory::Reader& reader, std::uint64_t offset,
               memory::Address address) {
  Page stored{};  // beyond the end of a file memory is zero
  Page mapped;
  return source.read_some(offset, stored) != 0 && reader.read(address, mapped) && stored == mapped;
}

}  // namespace

bool holds_what_is_mapped(const Source& source, const std::vector<proc::Mapping>& mappings,
                          const proc::Mapping& mapping, const memory::Reader& reader) {
  bool compared = false;
  for (const proc::Mapping& part : mappings) {
    const bool of_it = part.inode == mapping.inode && part.dev_major == mapping.dev_major &&
                       part.dev_minor == mapping.dev_minor && part.path == mapping.path;
    // Data, even where it is no longer writable, has been changed by relocations.
    const bool unchanged = part.readable && !part.writable && (part.executable || part.offset == 0);
    if (!of_it || !unchanged) continue;
    const std::uint64_t pages = (part.end - part.start) / page_size;
    for (std::uint64_t i = 0; i < std::min(pages, pages_each); ++i) {
      const std::uint64_t within = pages <= pages_each ? i : i * (pages - 1) / (pages_each - 1);
      if (part.offset + within * page_size >= source.size()) continue;
      if (!same_page(source, reader, part.offset + within * page_size, part.start + within * page_size))
        return false;
      compared = true;
    }
  }
  return compared;
}

bool same_head_and_tail(const Source& one, const Source& other) {
  if (one.size() != other.size()) return false;
  const std::uint64_t tail = one.size() > page_size ? one.size() - page_size : 0;
  for (const std::uint64_t offset : {std::uint64_t{0}, tail}) {
    Page a{};
    Page b{};
    const std::size_t count = one.read_some(offset, a);
    if (count == 0 || other.read_some(offset, b) != count || a != b) return false;
  }
  return true;
}

}  // namespace hangtrace::elf
