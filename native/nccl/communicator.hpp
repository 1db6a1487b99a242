#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memory/reader.hpp"
#include "nccl/layout.hpp"

namespace hangtrace::nccl {

using memory::Address;

/// How an object was found.
enum class FoundBy { list, magic, fingerprint };
const char* name(FoundBy found_by);

/// One operation of a launched kernel. Numbers as in nccl.h and NCCL's internal enums.
struct Task {
  int function = -1;
  std::uint64_t count = 0;
  int dtype = -1;
  int op = -1;         // -1: it has none
  int root = -1;       // root, or the peer of a message
  int algorithm = -1;  // -1: not recorded
  int protocol = -1;
  bool p2p = false;
};

/// Kernels that were launched together and that the host has not taken back yet: newest last. That they are
/// here does not say that they still run.
struct Plan {
  Address kernel = 0;       // the host's stub of the kernel
  std::string kernel_name;  // empty: unknown
  std::optional<int> collectives;
  std::vector<Task> tasks;
};

/// One transfer that NCCL's proxy thread works on, by its steps.
struct Transfer {
  int peer = -1;
  int steps = -1;
  std::uint64_t posted = 0;
  std::uint64_t received = 0;
  std::uint64_t transmitted = 0;
  std::uint64_t done = 0;
};

/// A communicator of one rank, as it stands in memory. What its release does not record, or what could not be
/// read, is nullopt.
struct Communicator {
  Address address = 0;
  FoundBy found_by = FoundBy::list;
  std::uint64_t comm_hash = 0;
  int rank = 0;
  int n_ranks = 0;
  int cuda_device = 0;
  std::optional<std::uint64_t> bus_id;  // domain << 20 | bus << 12 | device << 4 | function
  std::optional<int> n_nodes;           // 0 until set-up has ended
  std::optional<std::string> group_name;
  std::optional<int> init_state;    // ncclResult_t: 0 when its set-up is done
  std::optional<int> async_result;  // ncclResult_t
  std::optional<int> proxy_result;  // ncclResult_t
  std::optional<bool> peers_known, aborted, finalizing, destroyed, revoked, in_group, split;
  std::optional<std::uint64_t> op_count, coll_op_count;
  std::optional<std::array<std::uint64_t, 5>> launched;  // by function: Broadcast, Reduce, AllGather,
                                                         // ReduceScatter, AllReduce
  std::optional<int> waiting;                            // enqueued in a group that is still open
  std::optional<bool> captured;                          // graphs launch kernels, which no number counts
  std::vector<Plan> plans;
  std::optional<Task> last_task;  // of the list of free ones: the last that was launched and taken back
  std::vector<Transfer> transfers;
};

/// What one rank of a communicator knows of another one. Equal hashes are one host, and one process of it.
struct Member {
  int rank = 0;
  int cuda_device = 0;
  std::optional<std::uint64_t> bus_id;
  std::uint64_t host_hash = 0;
  std::uint64_t pid_hash = 0;
};

/// These ranks of the communicator that lies there, as far as it knows them.
std::vector<Member> members(const memory::Reader& memory, const Layout& layout, Address address,
                            const std::vector<int>& ranks);

/// Whether what lies there is a communicator by all that can be checked; nullopt if not.
std::optional<Communicator> decode(const memory::Reader& memory, const Layout& layout, Address address,
                                   FoundBy found_by);

}  // namespace hangtrace::nccl
