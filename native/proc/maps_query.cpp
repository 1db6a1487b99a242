#include <fcntl.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>

#include "proc/maps.hpp"

namespace hangtrace::proc {

namespace {

// struct procmap_query of <linux/fs.h>, Linux 6.11; older headers lack it.
struct Query {
  std::uint64_t size;
  std::uint64_t query_flags;
  std::uint64_t query_addr;
  std::uint64_t vma_start;
  std::uint64_t vma_end;
  std::uint64_t vma_flags;
  std::uint64_t vma_page_size;
  std::uint64_t vma_offset;
  std::uint64_t inode;
  std::uint32_t dev_major;
  std::uint32_t dev_minor;
  std::uint32_t vma_name_size;
  std::uint32_t build_id_size;
  std::uint64_t vma_name_addr;
  std::uint64_t build_id_addr;
};
static_assert(sizeof(Query) == 104);

constexpr unsigned long procmap_query = _IOWR('f', 17, Query);
constexpr std::uint64_t vma_readable = 0x01;
constexpr std::uint64_t vma_writable = 0x02;
constexpr std::uint64_t vma_executable = 0x04;
constexpr std::uint64_t vma_shared = 0x08;
constexpr std::uint64_t covering_or_next = 0x10;

bool same(const Mapping& a, const Mapping& b) {
  return a.start == b.start && a.end == b.end && a.offset == b.offset && a.dev_major == b.dev_major &&
         a.dev_minor == b.dev_minor && a.inode == b.inode && a.readable == b.readable &&
         a.writable == b.writable && a.executable == b.executable && a.shared == b.shared;
}

}  // namespace

std::optional<MapsQuery> MapsQuery::open(const std::string& proc_root, int pid) {
  Descriptor file(::open(process_path(proc_root, pid, "maps").c_str(), O_RDONLY | O_CLOEXEC));
  return file ? std::optional(MapsQuery(std::move(file))) : std::nullopt;
}

MapsQuery::Answer MapsQuery::at(Address address, bool or_next_executable, Mapping& mapping) const {
  Query query{};
  query.size = sizeof query;
  query.query_flags = or_next_executable ? covering_or_next | vma_executable : 0;
  query.query_addr = address;
  if (ioctl(file_.get(), procmap_query, &query) != 0) {
    return errno == ENOENT ? Answer::none : Answer::failed;
  }
  mapping.start = query.vma_start;
  mapping.end = query.vma_end;
  mapping.offset = query.vma_offset;
  mapping.dev_major = query.dev_major;
  mapping.dev_minor = query.dev_minor;
  mapping.inode = query.inode;
  mapping.readable = (query.vma_flags & vma_readable) != 0;
  mapping.writable = (query.vma_flags & vma_writable) != 0;
  mapping.executable = (query.vma_flags & vma_executable) != 0;
  mapping.shared = (query.vma_flags & vma_shared) != 0;
  return Answer::found;
}

bool still_mapped(const MapsQuery& query, const std::vector<Mapping>& mappings,
                  std::span<const Address> addresses) {
  Mapping now;
  Address from = 0;
  for (const Mapping& known : mappings) {
    // The kernel adds this one to the text only.
    if (!known.executable || known.path == "[vsyscall]") {
      continue;
    }
    if (query.at(from, true, now) != MapsQuery::Answer::found || !same(known, now)) {
      return false;
    }
    from = known.end;
  }
  if (query.at(from, true, now) != MapsQuery::Answer::none) {
    return false;
  }
  const Mapping* last = nullptr;
  for (const Address address : addresses) {
    const Mapping* const known = find_mapping(mappings, address);
    if (known != nullptr && (known == last || known->executable)) {
      continue;
    }
    last = known;
    const auto answer = query.at(address, false, now);
    if (known == nullptr ? answer != MapsQuery::Answer::none
                         : answer != MapsQuery::Answer::found || !same(*known, now)) {
      return false;
    }
  }
  return true;
}

}  // namespace hangtrace::proc
