#include "bindings/nccl.hpp"

#include <pybind11/stl.h>

#include "bindings/convert.hpp"
#include "elf/open.hpp"
#include "nccl/process.hpp"

namespace hangtrace::bindings {

namespace {

py::dict convert(const nccl::Task& task) {
  py::dict result;
  result["function"] = task.function;
  result["count"] = task.count;
  result["dtype"] = task.dtype;
  result["op"] = task.op;
  result["root"] = task.root;
  result["algorithm"] = task.algorithm;
  result["protocol"] = task.protocol;
  result["p2p"] = task.p2p;
  return result;
}

py::dict convert(const nccl::Transfer& transfer) {
  py::dict result;
  result["peer"] = transfer.peer;
  result["steps"] = transfer.steps;
  result["posted"] = transfer.posted;
  result["received"] = transfer.received;
  result["transmitted"] = transfer.transmitted;
  result["done"] = transfer.done;
  return result;
}

py::dict convert(const nccl::Communicator& comm) {
  py::dict result;
  result["address"] = comm.address;
  result["found_by"] = name(comm.found_by);
  result["comm_hash"] = comm.comm_hash;
  result["rank"] = comm.rank;
  result["n_ranks"] = comm.n_ranks;
  result["cuda_device"] = comm.cuda_device;
  result["bus_id"] = comm.bus_id;
  result["n_nodes"] = comm.n_nodes;
  result["name"] = comm.group_name ? py::object(text(*comm.group_name)) : py::object(py::none());
  result["init_state"] = comm.init_state;
  result["async_result"] = comm.async_result;
  result["proxy_result"] = comm.proxy_result;
  result["peers_known"] = comm.peers_known;
  result["aborted"] = comm.aborted;
  result["finalizing"] = comm.finalizing;
  result["destroyed"] = comm.destroyed;
  result["revoked"] = comm.revoked;
  result["in_group"] = comm.in_group;
  result["split"] = comm.split;
  result["op_count"] = comm.op_count;
  result["coll_op_count"] = comm.coll_op_count;
  result["launched"] = comm.launched;
  result["waiting"] = comm.waiting;
  result["captured"] = comm.captured;
  py::list plans;
  for (const nccl::Plan& plan : comm.plans) {
    py::list tasks;
    for (const nccl::Task& task : plan.tasks) tasks.append(convert(task));
    plans.append(
        py::make_tuple(plan.kernel_name.empty() ? py::object(py::none()) : py::object(text(plan.kernel_name)),
                       plan.collectives, tasks));
  }
  result["plans"] = plans;
  result["last_task"] = comm.last_task ? py::object(convert(*comm.last_task)) : py::object(py::none());
  py::list transfers;
  for (const nccl::Transfer& transfer : comm.transfers) transfers.append(convert(transfer));
  result["transfers"] = transfers;
  return result;
}

py::dict convert(const nccl::Call& call) {
  py::dict result;
  result["tid"] = call.tid;
  result["function"] = call.function;
  result["name"] = text(call.name);
  result["count"] = call.count;
  result["dtype"] = call.dtype;
  result["op"] = call.op;
  result["root"] = call.root;
  result["communicator"] = call.communicator;
  result["stream"] = call.stream;
  return result;
}

py::object inspect(nccl::Inspector& inspector, int pid,
                   const std::vector<std::pair<int, std::uint64_t>>& callers, bool search,
                   const std::vector<std::pair<std::uint64_t, std::vector<int>>>& members,
                   const std::vector<std::string>& libraries, double budget_s) {
  nccl::Request request;
  request.libraries = libraries;
  request.members = members;
  request.pid = pid;
  request.search = search;
  for (const auto& [tid, stack_pointer] : callers) request.callers.push_back({tid, stack_pointer});
  nccl::Found found;
  {
    const py::gil_scoped_release release;
    found = inspector.inspect(request, after(budget_s));
  }
  if (found.library.empty() && found.problem.empty()) return py::none();
  py::dict result;
  result["library"] = text(found.library);
  result["build_id"] = text(found.build_id);
  result["layout_from"] = name(found.layout_from);
  py::list communicators;
  for (const nccl::Communicator& each : found.communicators) communicators.append(convert(each));
  result["communicators"] = communicators;
  py::list calls;
  for (const nccl::Call& each : found.calls) calls.append(convert(each));
  result["calls"] = calls;
  py::list peers;
  for (const nccl::Peer& each : found.peers) {
    peers.append(
        py::make_tuple(text(each.address), each.pid, each.cuda_devices, each.host_hash, each.pid_hash));
  }
  result["peers"] = peers;
  py::list known_members;
  for (const auto& known : found.members) {
    py::list each;
    for (const nccl::Member& member : known) {
      each.append(
          py::make_tuple(member.rank, member.cuda_device, member.bus_id, member.host_hash, member.pid_hash));
    }
    known_members.append(each);
  }
  result["members"] = known_members;
  result["searched"] = found.searched;
  result["problem"] = found.problem.empty() ? py::object(py::none()) : py::object(text(found.problem));
  return result;
}

// A layout from one source, or from the best one: for the tool that makes the table of published builds, and
// tests.
py::object layout(const std::string& path, const std::string& source, double budget_s) {
  std::optional<nccl::Layout> found;
  std::string build_id;
  {
    const py::gil_scoped_release release;
    if (auto file = elf::open_regular(path)) {
      const elf::OpenedModule opened = elf::Module::open(std::move(file), path);
      if (opened.module != nullptr) {
        build_id = opened.module->build_id_hex();
        if (source == "dwarf") {
          found = nccl::layout_from_dwarf(*opened.module, after(budget_s));
        } else if (source == "table") {
          found = nccl::layout_from_table(*opened.module);
        } else if (source == "disassembly") {
          found = nccl::layout_from_code(*opened.module);
        } else {
          found = nccl::find_layout(*opened.module, after(budget_s));
        }
      }
    }
  }
  if (!found) return py::none();
  py::dict offsets;
  for (const nccl::FieldName& each : nccl::fields) {
    const std::string key = std::string(each.structure) + "." + std::string(each.member);
    if (const auto offset = found->offset(each.field)) offsets[text(key)] = *offset;
  }
  py::dict result;
  result["layout_from"] = name(found->from);
  result["build_id"] = text(build_id);
  result["comm_size"] = found->comm_size;
  result["sub_size"] = found->sub_size;
  result["peer_size"] = found->peer_size;
  result["offsets"] = offsets;
  result["row"] = found->offsets;
  return result;
}

}  // namespace

void define_nccl(py::module_& module) {
  py::class_<nccl::Inspector>(module, "NcclInspector")
      .def(py::init<std::string>(), py::arg("proc_root") = "/proc")
      .def("inspect", &inspect, py::arg("pid"), py::kw_only(),
           py::arg("callers") = std::vector<std::pair<int, std::uint64_t>>{}, py::arg("search") = false,
           py::arg("members") = std::vector<std::pair<std::uint64_t, std::vector<int>>>{},
           py::arg("libraries") = std::vector<std::string>{}, py::arg("budget_s") = 1.0);
  module.def("nccl_layout", &layout, py::arg("path"), py::kw_only(), py::arg("source") = "best",
             py::arg("budget_s") = 5.0);
}

}  // namespace hangtrace::bindings
