#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hangtrace::nccl {

/// Members of NCCL's internal structures that are read. What a release does not have is absent from its
/// layout: presence is asked for, never a version number. `fields` says where each stands.
enum class Field : std::uint8_t {
  // ncclComm
  start_magic,
  end_magic,
  shared_resources,
  peer_info_valid,
  magic,
  comm_hash,
  rank,
  n_ranks,
  cuda_device,
  nvml_device,
  bus_id,
  n_nodes,
  op_count,
  coll_op_count,
  async_result,
  abort_flag,
  destroy_flag,
  revoked_flag,
  proxy_state,
  group_next,
  planner,
  callback_queue,
  config,
  init_state,
  finalize_called,
  sequence_numbers,
  free_tasks,
  // ncclConfig
  config_name,
  // ncclSharedResources
  shared_owner,
  shared_magic,
  shared_coll_op_count,
  // ncclKernelPlanner
  planned_collectives,
  planned_p2p,
  // ncclKernelPlan
  plan_kernel,
  plan_collectives,
  plan_p2p_tasks,
  plan_collective_tasks,
  // ncclTaskColl
  task_function,
  task_count,
  task_root,
  task_dtype,
  task_op,
  task_algorithm,
  task_protocol,
  // ncclTaskP2p
  p2p_function,
  p2p_count,
  p2p_dtype,
  p2p_peer,
  // ncclProxyState
  proxy_async_result,
  proxy_progress,
  // ncclProxyProgressState
  progress_active,
  // ncclProxyArgs
  proxy_subs,
  proxy_n_subs,
  proxy_next,
  // ncclProxySubArgs
  sub_steps,
  sub_peer,
  sub_posted,
  sub_received,
  sub_transmitted,
  sub_done,
  // ncclComm, again
  peer_info,
  captured,
  captured_here,
  // ncclPeerInfo
  peer_rank,
  peer_cuda_device,
  peer_host_hash,
  peer_pid_hash,
  peer_bus_id,
  count_,
};
constexpr std::size_t field_count = static_cast<std::size_t>(Field::count_);

struct FieldName {
  Field field;
  std::string_view structure;  // as in NCCL's sources; '*' stands for any ending
  std::string_view member;
};
extern const std::array<FieldName, field_count> fields;

/// Where a layout is known from, best first. `table`: of this very build; `release`: of another build of the
/// same release.
enum class LayoutFrom { dwarf, table, release, disassembly, fingerprint };
const char* name(LayoutFrom from);

/// Where the members lie, in bytes from the begin of their structure.
struct Layout {
  LayoutFrom from = LayoutFrom::fingerprint;
  std::uint32_t comm_size = 0;  // 0: unknown
  std::uint32_t sub_size = 0;   // of ncclProxySubArgs
  std::uint32_t peer_size = 0;  // of ncclPeerInfo
  std::array<std::int32_t, field_count> offsets = [] {
    std::array<std::int32_t, field_count> none;
    none.fill(-1);
    return none;
  }();

  std::optional<std::uint32_t> offset(Field field) const {
    const std::int32_t offset = offsets[static_cast<std::size_t>(field)];
    return offset < 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(offset));
  }
  bool has(Field field) const { return offset(field).has_value(); }
  void set(Field field, std::uint64_t offset) {
    offsets[static_cast<std::size_t>(field)] = static_cast<std::int32_t>(offset);
  }
  /// Whether a communicator can be told from other memory by it.
  bool is_usable() const {
    return has(Field::comm_hash) && has(Field::rank) && has(Field::n_ranks) && has(Field::cuda_device);
  }
};

/// Of a published library; the table is in layout_table.cpp.
struct KnownLayout {
  std::string_view build_id;
  std::string_view release;
  std::uint32_t comm_size;
  std::uint32_t sub_size;
  std::uint32_t peer_size;
  std::array<std::int32_t, field_count> offsets;
};
std::span<const KnownLayout> known_layouts();

}  // namespace hangtrace::nccl
