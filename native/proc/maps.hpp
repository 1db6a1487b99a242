#pragma once

#include <cstdint>
#include <map>
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
  /// The mapping that holds an address, or else the next one behind: any, or of those that are executable.
  enum class Which { holding, holding_or_next, code_or_next };
  /// Fills all but path and `deleted`; those too with `named`, which costs as much again.
  Answer at(Address address, Which which, Mapping& mapping, bool named = false) const;

 private:
  explicit MapsQuery(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

/// The executable mappings, those which hold the addresses, and what lies behind them all: sorted, with
/// paths. nullopt if they cannot be asked for, or if they do not stand for themselves: code without file, or
/// of one that was unlinked, is told apart by what is mapped around it. [vsyscall] is not among them.
std::optional<std::vector<Mapping>> query_code(const MapsQuery& query, std::span<const Address> addresses);

/// What a list of query_code() leaves out, read when it is needed.
class UnlistedMappings {
 public:
  UnlistedMappings(std::string proc_root, int pid) : proc_root_(std::move(proc_root)), pid_(pid) {}

  /// The mapping that holds the address, as it was when it was first asked for; nullptr: none, or it cannot
  /// be told.
  const Mapping* at(Address address);
  /// All mappings, also the listed ones, read the first time; empty if they cannot be.
  const std::vector<Mapping>& all();
  /// Nothing is known any more, and no file open.
  void forget();

 private:
  std::string proc_root_;
  int pid_;
  std::optional<MapsQuery> query_;
  std::map<Address, Mapping> asked_;  // by start
  std::optional<std::vector<Mapping>> all_;
};

/// Whether the executable mappings, and those which hold the addresses, are those in `mappings`. False also
/// if that cannot be told.
bool still_mapped(const MapsQuery& query, const std::vector<Mapping>& mappings,
                  std::span<const Address> addresses);

}  // namespace hangtrace::proc
