#include "nccl/layout.hpp"

namespace hangtrace::nccl {

// Names of NCCL 2.18.1 to 2.32.3, as the debug information of their wheels on PyPI has them. RCCL has the
// same.
const std::array<FieldName, field_count> fields = {{
    // Since 2.21 (the magic numbers, and `finalizeCalled` as it is now; before that a communicator has no
    // mark).
    {Field::start_magic, "ncclComm", "startMagic"},
    {Field::end_magic, "ncclComm", "endMagic"},
    {Field::shared_resources, "ncclComm", "sharedRes"},
    {Field::peer_info_valid, "ncclComm", "peerInfoValid"},  // since 2.27
    {Field::magic, "ncclComm", "magic"},
    {Field::comm_hash, "ncclComm", "commHash"},
    {Field::rank, "ncclComm", "rank"},
    {Field::n_ranks, "ncclComm", "nRanks"},
    {Field::cuda_device, "ncclComm", "cudaDev"},
    {Field::nvml_device, "ncclComm", "nvmlDev"},  // since 2.19
    {Field::bus_id, "ncclComm", "busId"},
    {Field::n_nodes, "ncclComm", "nNodes"},
    {Field::op_count, "ncclComm", "opCount"},
    {Field::coll_op_count, "ncclComm", "collOpCount"},  // since 2.24
    {Field::async_result, "ncclComm", "asyncResult"},
    {Field::abort_flag, "ncclComm", "abortFlag"},
    {Field::destroy_flag, "ncclComm", "destroyFlag"},  // since 2.22
    {Field::revoked_flag, "ncclComm", "revokedFlag"},  // since 2.28
    {Field::proxy_state, "ncclComm", "proxyState"},
    {Field::group_next, "ncclComm", "groupNext"},  // since 2.27 an array, one for each kind of group
    {Field::planner, "ncclComm", "planner"},       // since 2.22
    {Field::callback_queue, "ncclComm", "callbackQueue"},
    {Field::config, "ncclComm", "config"},
    {Field::init_state, "ncclComm", "initState"},
    {Field::finalize_called, "ncclComm", "finalizeCalled"},
    {Field::sequence_numbers, "ncclComm", "seqNumber"},       // since 2.23, used since 2.26
    {Field::free_tasks, "ncclComm", "memPool_ncclTaskColl"},  // since 2.23
    {Field::config_name, "ncclConfig_v*", "commName"},        // since 2.27
    {Field::shared_owner, "ncclSharedResources", "owner"},
    {Field::shared_magic, "ncclSharedResources", "magic"},
    {Field::shared_coll_op_count, "ncclSharedResources", "collOpCount"},
    {Field::planned_collectives, "ncclKernelPlanner", "nTasksColl"},
    {Field::planned_p2p, "ncclKernelPlanner", "nTasksP2p"},
    {Field::plan_kernel, "ncclKernelPlan", "kernelFn"},
    {Field::plan_collectives, "ncclKernelPlan", "collOpCount"},
    {Field::plan_p2p_tasks, "ncclKernelPlan", "p2pTaskQueue"},
    {Field::plan_collective_tasks, "ncclKernelPlan", "collTaskQueue"},
    {Field::task_function, "ncclTaskColl", "func"},
    {Field::task_count, "ncclTaskColl", "count"},
    {Field::task_root, "ncclTaskColl", "root"},
    {Field::task_dtype, "ncclTaskColl", "datatype"},
    {Field::task_op, "ncclTaskColl", "opHost"},
    {Field::task_algorithm, "ncclTaskColl", "algorithm"},
    {Field::task_protocol, "ncclTaskColl", "protocol"},
    {Field::p2p_function, "ncclTaskP2p", "func"},
    {Field::p2p_count, "ncclTaskP2p", "count"},
    {Field::p2p_dtype, "ncclTaskP2p", "datatype"},
    {Field::p2p_peer, "ncclTaskP2p", "root"},
    {Field::proxy_async_result, "ncclProxyState", "asyncResult"},
    {Field::proxy_progress, "ncclProxyState", "progressState"},
    {Field::progress_active, "ncclProxyProgressState", "active"},
    {Field::proxy_subs, "ncclProxyArgs", "subs"},
    {Field::proxy_n_subs, "ncclProxyArgs", "nsubs"},
    {Field::proxy_next, "ncclProxyArgs", "next"},
    {Field::sub_steps, "ncclProxySubArgs", "nsteps"},
    {Field::sub_peer, "ncclProxySubArgs", "peer"},
    {Field::sub_posted, "ncclProxySubArgs", "posted"},
    {Field::sub_received, "ncclProxySubArgs", "received"},
    {Field::sub_transmitted, "ncclProxySubArgs", "transmitted"},
    {Field::sub_done, "ncclProxySubArgs", "done"},
    {Field::peer_info, "ncclComm", "peerInfo"},
    // Launches of captured graphs that may still be made: until 2.25 of a communicator and those that share
    // with it,
    // since then of this one.
    {Field::captured, "ncclComm", "persistentRefs"},
    {Field::captured_here, "ncclComm", "localPersistentRefs"},
    {Field::peer_rank, "ncclPeerInfo", "rank"},
    {Field::peer_cuda_device, "ncclPeerInfo", "cudaDev"},
    {Field::peer_host_hash, "ncclPeerInfo", "hostHash"},
    {Field::peer_pid_hash, "ncclPeerInfo", "pidHash"},
    {Field::peer_bus_id, "ncclPeerInfo", "busId"},
}};

const char* name(LayoutFrom from) {
  switch (from) {
    case LayoutFrom::dwarf:
      return "dwarf";
    case LayoutFrom::table:
      return "table";
    case LayoutFrom::release:
      return "release";
    case LayoutFrom::disassembly:
      return "disassembly";
    case LayoutFrom::fingerprint:
      return "fingerprint";
  }
  return "fingerprint";
}

}  // namespace hangtrace::nccl
