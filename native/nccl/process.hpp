#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "elf/module_cache.hpp"
#include "elf/process_modules.hpp"
#include "nccl/calls.hpp"
#include "nccl/communicator.hpp"
#include "nccl/find_layout.hpp"

namespace hangtrace::nccl {

/// A thread that is inside of NCCL, or may be.
struct Caller {
  int tid;
  Address stack_pointer;
};

/// A process of the same job, also on other hosts, as NCCL's RAS subsystem knows it (since 2.24).
struct Peer {
  std::string address;  // "10.0.0.1:1234"
  int pid = 0;
  std::uint64_t cuda_devices = 0;  // one bit each
  std::uint64_t host_hash = 0;     // 0: not recorded
  std::uint64_t pid_hash = 0;      // likewise
};

struct Found {
  std::string library;  // path; empty: NCCL is not loaded
  std::string build_id;
  LayoutFrom layout_from = LayoutFrom::fingerprint;
  std::vector<Communicator> communicators;
  std::vector<Call> calls;
  std::vector<Peer> peers;
  std::vector<std::vector<Member>> members;  // as asked for
  bool searched = false;                     // memory was searched, not only the library's own list read
  std::string problem;                       // why something may be missing
};

struct Request {
  int pid = 0;
  std::vector<Caller> callers;
  /// Search memory also where the library lists communicators: those that are being set up are not in the
  /// list.
  bool search = false;
  /// Paths of files that threads are in, in functions of NCCL.
  std::vector<std::string> libraries;
  /// Communicators by address, and the ranks of them that are asked for: then nothing is searched for.
  std::vector<std::pair<Address, std::vector<int>>> members;
};

/// Reads what NCCL knows about its communicators in other processes. Keeps libraries and their layouts
/// between requests. One thread at a time.
class Inspector {
 public:
  explicit Inspector(std::string proc_root) : proc_root_(std::move(proc_root)) {}

  /// Never throws for what a process does. A library whose layout is not known yet may take up to a second of
  /// it.
  Found inspect(const Request& request, Deadline deadline);

 private:
  struct Library {
    Layout layout;
    std::optional<Address> comms, n_comms, peers, n_peers;  // va of the library's own lists
  };
  Found inspect_library(const Request& request, elf::ProcessModules& modules, const elf::Location& location,
                        const memory::Reader& memory, Deadline deadline);
  const Library& library_of(elf::Module& module, Deadline deadline);

  std::string proc_root_;
  elf::ModuleCache modules_;
  std::map<const elf::Module*, Library> libraries_;
};

}  // namespace hangtrace::nccl
