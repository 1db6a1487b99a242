#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/reader.hpp"
#include "proc/files.hpp"

namespace hangtrace::proc {

using memory::Address;

struct Mapping {
  Address start = 0;
  Address end = 0;
  Address offset = 0;  // into the file, in bytes
  std::uint32_t dev_major = 0;
  std::uint32_t dev_minor = 0;
  std::uint64_t inode = 0;
  bool readable = false;
  bool writable = false;
  bool executable = false;
  bool shared = false;
  bool deleted = false;  // the file was unlinked; " (deleted)" is not part of `path`
  std::string path;      // empty if anonymous, "[stack]" and the like for special ones; newlines unescaped
};

/// Mappings of a process, sorted by address; nullopt with errno set if they cannot be read. Empty for a
/// kernel thread and for a zombie. Waits while the target's mmap lock is held (kernels before 6.17).
std::optional<std::vector<Mapping>> read_maps(const std::string& proc_root, int pid);

/// Parses the text of a maps file; lines that do not parse are left out.
std::vector<Mapping> parse_maps(std::string_view text);

/// Parses one line of maps (or the first line of an smaps entry); false if it is something else.
bool parse_mapping(std::string_view line, Mapping& mapping);

/// The mapping that holds the address, or nullptr. The vector must be sorted.
const Mapping* find_mapping(const std::vector<Mapping>& mappings, Address address);

/// Asks for single mappings, where the kernel (Linux 6.11) has that: cheap where only few matter.
class MapsQuery {
 public:
  /// nullopt if the file cannot be opened.
  static std::optional<MapsQuery> open(const std::string& proc_root, int pid);

  enum class Answer { found, none, failed };
  /// The mapping at `address` or, with `or_next_executable`, the executable one there or behind. Fills all
  /// but path and `deleted`.
  Answer at(Address address, bool or_next_executable, Mapping& mapping) const;

 private:
  explicit MapsQuery(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

/// Whether the executable mappings, and those which hold the addresses, are those in `mappings`. False also
/// if that cannot be told.
bool still_mapped(const MapsQuery& query, const std::vector<Mapping>& mappings,
                  std::span<const Address> addresses);

}  // namespace hangtrace::proc
