#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/reader.hpp"

namespace hangtrace::elf {

using memory::Address;

struct JitSymbol {
  std::string name;  // as the program wrote it
  Address start = 0;
  std::uint64_t size = 0;
};

/// Names which a program gives to code it makes at run time: /tmp/perf-PID.map below its own root, with its
/// pid in its own namespace; lines of "START SIZE name" in hex (Linux,
/// tools/perf/Documentation/jit-interface.txt). Taken only from a regular file that belongs to the program's
/// user or to root and was written since the program began, at most 64 MiB of it.
class PerfMap {
 public:
  PerfMap(std::string proc_root, int pid) : proc_root_(std::move(proc_root)), pid_(pid) {}

  /// One pass over the file for all addresses, and none if it did not change since they were asked before.
  std::vector<std::optional<JitSymbol>> names(std::span<const Address> addresses);

 private:
  std::string proc_root_;
  int pid_;
  std::map<Address, std::optional<JitSymbol>> known_;
  std::int64_t mtime_ns_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace hangtrace::elf
