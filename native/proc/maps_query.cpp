#include <fcntl.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <iterator>
#include <string_view>

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
constexpr std::size_t most_mappings = 1 << 16;  // Linux's own default bound
constexpr std::string_view deleted_mark = " (deleted)";

std::uint64_t flags_of(MapsQuery::Which which) {
  switch (which) {
    case MapsQuery::Which::holding:
      return 0;
    case MapsQuery::Which::holding_or_next:
      return covering_or_next;
    case MapsQuery::Which::code_or_next:
      return covering_or_next | vma_executable;
  }
  return 0;
}

// As in the text of maps, but that newlines are not escaped.
void set_path(std::string_view name, Mapping& mapping) {
  mapping.deleted = name.ends_with(deleted_mark);
  if (mapping.deleted) {
    name.remove_suffix(deleted_mark.size());
  }
  mapping.path = name;
}

bool stands_for_itself(const Mapping& code) {
  return !code.deleted &&
         (code.inode != 0 || (code.path.starts_with('[') && !code.path.starts_with("[anon")));
}

// Appends the mappings from an address on; false if one of them cannot be told.
bool append(const MapsQuery& query, Address from, MapsQuery::Which which, std::vector<Mapping>& mappings) {
  for (Mapping mapping; mappings.size() < most_mappings;) {
    const auto answer = query.at(from, which, mapping, true);
    if (answer != MapsQuery::Answer::found) {
      return answer == MapsQuery::Answer::none;
    }
    if (mapping.end <= from) {
      return false;
    }
    from = mapping.end;
    mappings.push_back(std::move(mapping));
  }
  return false;
}

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

MapsQuery::Answer MapsQuery::at(Address address, Which which, Mapping& mapping, bool named) const {
  std::array<char, PATH_MAX> name;  // the kernel takes no larger one
  Query query{};
  query.size = sizeof query;
  query.query_flags = flags_of(which);
  query.query_addr = address;
  if (named) {
    query.vma_name_size = name.size();
    query.vma_name_addr = reinterpret_cast<std::uint64_t>(name.data());
  }
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
  if (named) {  // the size that comes back counts the end of the string; 0: there is no name
    set_path({name.data(), std::min<std::size_t>(std::max(query.vma_name_size, 1U) - 1, name.size())},
             mapping);
  }
  return Answer::found;
}

std::optional<std::vector<Mapping>> query_code(const MapsQuery& query, std::span<const Address> addresses) {
  std::vector<Mapping> code;
  if (!append(query, 0, MapsQuery::Which::code_or_next, code) ||
      !std::ranges::all_of(code, stands_for_itself)) {
    return std::nullopt;
  }
  std::vector<Mapping> others;
  for (const Address address : addresses) {
    if (find_mapping(code, address) != nullptr || find_mapping(others, address) != nullptr) {
      continue;
    }
    Mapping mapping;
    const auto answer = query.at(address, MapsQuery::Which::holding, mapping, true);
    if (answer == MapsQuery::Answer::failed || (!others.empty() && mapping.start < others.back().end)) {
      return std::nullopt;
    }
    if (answer == MapsQuery::Answer::found) {
      others.push_back(std::move(mapping));
    }
  }
  const Address last = std::max(code.empty() ? 0 : code.back().end, others.empty() ? 0 : others.back().end);
  if (!append(query, last, MapsQuery::Which::holding_or_next, others)) {
    return std::nullopt;
  }
  std::vector<Mapping> all;
  all.reserve(code.size() + others.size());
  std::ranges::merge(std::make_move_iterator(code.begin()), std::make_move_iterator(code.end()),
                     std::make_move_iterator(others.begin()), std::make_move_iterator(others.end()),
                     std::back_inserter(all), {}, &Mapping::start, &Mapping::start);
  return all;
}

const Mapping* UnlistedMappings::at(Address address) {
  if (all_) {
    return find_mapping(*all_, address);
  }
  const auto behind = asked_.upper_bound(address);
  if (behind != asked_.begin() && address < std::prev(behind)->second.end) {
    return &std::prev(behind)->second;
  }
  if (!query_) {
    query_ = MapsQuery::open(proc_root_, pid_);
  }
  Mapping mapping;
  if (!query_ || query_->at(address, MapsQuery::Which::holding, mapping, true) != MapsQuery::Answer::found) {
    return nullptr;
  }
  return &(asked_[mapping.start] = mapping);
}

const std::vector<Mapping>& UnlistedMappings::all() {
  if (!all_) {
    all_ = read_maps(proc_root_, pid_).value_or(std::vector<Mapping>{});
  }
  return *all_;
}

void UnlistedMappings::forget() {
  query_.reset();
  asked_.clear();
  all_.reset();
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
    if (query.at(from, MapsQuery::Which::code_or_next, now) != MapsQuery::Answer::found ||
        !same(known, now)) {
      return false;
    }
    from = known.end;
  }
  if (query.at(from, MapsQuery::Which::code_or_next, now) != MapsQuery::Answer::none) {
    return false;
  }
  const Mapping* last = nullptr;
  for (const Address address : addresses) {
    const Mapping* const known = find_mapping(mappings, address);
    if (known != nullptr && (known == last || known->executable)) {
      continue;
    }
    last = known;
    const auto answer = query.at(address, MapsQuery::Which::holding, now);
    if (known == nullptr ? answer != MapsQuery::Answer::none
                         : answer != MapsQuery::Answer::found || !same(*known, now)) {
      return false;
    }
  }
  return true;
}

}  // namespace hangtrace::proc
