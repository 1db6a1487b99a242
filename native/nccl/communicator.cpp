#include "nccl/communicator.hpp"

#include <algorithm>
#include <deque>
#include <set>

#include "nccl/magic.hpp"

namespace hangtrace::nccl {

namespace {

constexpr int max_ranks = 1 << 20;
constexpr int max_devices = 1 << 10;
constexpr std::size_t max_name = 256;
constexpr std::size_t max_plans = 32;
constexpr std::size_t max_plans_walked = 4096;
constexpr std::size_t max_tasks = 64;
constexpr std::size_t max_transfers = 256;
constexpr std::size_t max_operations = 64;
constexpr int max_subs = 128;
constexpr int max_functions = 32;
constexpr int max_dtypes = 32;

bool is_pointer(Address address) {
  return address >= 4096 && address < (Address{1} << 56) && address % 8 == 0;
}

// Members of one structure.
class View {
 public:
  View(const memory::Reader& memory, const Layout& layout, Address base)
      : memory_(memory), layout_(layout), base_(base) {}

  template <class T>
  std::optional<T> get(Field field) const {
    const auto offset = layout_.offset(field);
    return offset ? memory_.read_value<T>(base_ + *offset) : std::nullopt;
  }
  template <class T>
  T get_or(Field field, T otherwise) const {
    return get<T>(field).value_or(otherwise);
  }
  std::optional<Address> pointer(Field field) const {
    const auto value = get<Address>(field);
    return value && is_pointer(*value) ? value : std::nullopt;
  }
  std::optional<bool> flag(Field field) const {
    const auto value = get<std::uint8_t>(field);
    return value && *value <= 1 ? std::optional(*value != 0) : std::nullopt;
  }
  std::optional<bool> word_flag(Field field) const {
    const auto value = get<std::int32_t>(field);
    return value ? std::optional(*value != 0) : std::nullopt;
  }
  std::optional<int> result(Field field) const {  // an ncclResult_t
    const auto value = get<std::int32_t>(field);
    return value && *value >= 0 && *value < 64 ? std::optional<int>(*value) : std::nullopt;
  }
  View at(Address base) const { return {memory_, layout_, base}; }
  Address base() const { return base_; }
  const Layout& layout() const { return layout_; }
  const memory::Reader& memory() const { return memory_; }

 private:
  const memory::Reader& memory_;
  const Layout& layout_;
  Address base_;
};

// Until it is done, its state is 7 (in progress); until 2.22, where its creator waits for it, 3 (an internal
// error).
bool is_being_set_up(const View& comm) {
  return comm.get_or<std::int32_t>(Field::init_state, 0) != 0;
}

bool has_marks(const View& comm) {
  for (const Field mark : {Field::start_magic, Field::end_magic}) {
    if (comm.layout().has(mark) && comm.get<std::uint64_t>(mark) != magic) return false;
  }
  return true;
}

// Of those that are in the same process and know each other, the first; and the resources that a communicator
// made by splitting another one may share with it. Both exist as soon as set-up is done.
bool is_consistent(const View& comm) {
  const auto shared = comm.get<Address>(Field::shared_resources);
  if (!shared) return true;  // not in this layout
  if (*shared == 0) return true;
  if (!is_pointer(*shared)) return false;
  const View resources = comm.at(*shared);
  const auto owner = resources.get<Address>(Field::shared_owner);
  if (owner && *owner == comm.base()) {
    const auto theirs = resources.get<std::uint64_t>(Field::shared_magic);
    const auto ours = comm.get<std::uint64_t>(Field::magic);
    // The one is copied from the other in the course of the set-up.
    return !theirs || !ours || *theirs == *ours || is_being_set_up(comm);
  }
  return !comm.layout().has(Field::shared_owner) || owner.has_value();
}

Task read_task(const View& task) {
  Task result;
  result.function = task.get_or<std::int32_t>(Field::task_function, -1);
  result.count = task.get_or<std::uint64_t>(Field::task_count, 0);
  result.dtype = task.get_or<std::int32_t>(Field::task_dtype, -1);
  result.op = task.get_or<std::int32_t>(Field::task_op, -1);
  result.root = task.get_or<std::int32_t>(Field::task_root, -1);
  result.algorithm = task.get_or<std::int8_t>(Field::task_algorithm, -1);
  result.protocol = task.get_or<std::int8_t>(Field::task_protocol, -1);
  return result;
}

Task read_message(const View& task) {
  Task result;
  result.p2p = true;
  result.function = task.get_or<std::int32_t>(Field::p2p_function, -1);
  result.count = task.get_or<std::uint64_t>(Field::p2p_count, 0);
  result.dtype = task.get_or<std::int32_t>(Field::p2p_dtype, -1);
  result.root = task.get_or<std::int32_t>(Field::p2p_peer, -1);
  return result;
}

bool is_plausible(const Task& task) {
  return task.function >= 0 && task.function < max_functions && task.dtype >= 0 && task.dtype < max_dtypes;
}

// A queue begins with a pointer to its first element, and each element with one to the next.
void read_tasks(const View& plan, Field queue, bool p2p, std::vector<Task>& into) {
  std::set<Address> seen;
  for (auto at = plan.pointer(queue); at && is_pointer(*at) && into.size() < max_tasks;
       at = plan.memory().read_value<Address>(*at)) {
    if (!seen.insert(*at).second) return;
    const Task task = p2p ? read_message(plan.at(*at)) : read_task(plan.at(*at));
    if (!is_plausible(task)) return;
    into.push_back(task);
  }
}

// What waits to be taken back by the host; other things than plans may wait there, too, but only they have a
// kernel. While the queue is not being emptied its first word leads from the oldest to the newest.
std::deque<View> newest_plans(const View& comm, Address queue) {
  std::deque<View> plans;
  std::set<Address> seen;
  auto at = comm.memory().read_value<Address>(queue);
  for (std::size_t walked = 0; at && is_pointer(*at) && walked < max_plans_walked; ++walked) {
    if (!seen.insert(*at).second) break;
    if (comm.at(*at).get_or<Address>(Field::plan_kernel, 0) >= 4096) {
      plans.push_back(comm.at(*at));
      if (plans.size() > max_plans) plans.pop_front();
    }
    at = comm.memory().read_value<Address>(*at);
  }
  return plans;
}

void read_plans(const View& comm, Communicator& result) {
  const auto queue = comm.layout().offset(Field::callback_queue);
  if (!queue) return;
  for (const View& view : newest_plans(comm, comm.base() + *queue)) {
    Plan plan;
    plan.kernel = view.get_or<Address>(Field::plan_kernel, 0);
    if (const auto count = view.get<std::int32_t>(Field::plan_collectives); count && *count >= 0) {
      plan.collectives = *count;
    }
    read_tasks(view, Field::plan_collective_tasks, false, plan.tasks);
    read_tasks(view, Field::plan_p2p_tasks, true, plan.tasks);
    result.plans.push_back(std::move(plan));
  }
}

// A pool begins with a pointer to the cell that was freed last; a freed cell keeps what it held behind its
// link.
void read_last_task(const View& comm, Communicator& result) {
  const auto pool = comm.pointer(Field::free_tasks);
  if (!pool || !comm.layout().has(Field::task_function)) return;
  const Task task = read_task(comm.at(*pool));
  if (is_plausible(task) && task.count != 0) result.last_task = task;
}

void read_transfers_of(const View& operation, std::vector<Transfer>& into) {
  const auto subs = operation.layout().offset(Field::proxy_subs);
  const int count = operation.get_or<std::int32_t>(Field::proxy_n_subs, 0);
  if (!subs || operation.layout().sub_size == 0 || count < 0 || count > max_subs) return;
  for (int i = 0; i < count && into.size() < max_transfers; ++i) {
    const View sub =
        operation.at(operation.base() + *subs + static_cast<Address>(i) * operation.layout().sub_size);
    Transfer transfer;
    transfer.peer = sub.get_or<std::int32_t>(Field::sub_peer, -1);
    transfer.steps = sub.get_or<std::int32_t>(Field::sub_steps, -1);
    transfer.posted = sub.get_or<std::uint64_t>(Field::sub_posted, 0);
    transfer.received = sub.get_or<std::uint64_t>(Field::sub_received, 0);
    transfer.transmitted = sub.get_or<std::uint64_t>(Field::sub_transmitted, 0);
    transfer.done = sub.get_or<std::uint64_t>(Field::sub_done, 0);
    into.push_back(transfer);
  }
}

void read_proxy(const View& comm, Communicator& result) {
  const auto state = comm.pointer(Field::proxy_state);
  if (!state) return;
  const View proxy = comm.at(*state);
  result.proxy_result = proxy.result(Field::proxy_async_result);
  const auto progress = comm.layout().offset(Field::proxy_progress);
  if (!progress) return;
  std::set<Address> seen;
  auto at = comm.at(*state + *progress).pointer(Field::progress_active);
  while (at && seen.size() < max_operations && seen.insert(*at).second) {
    read_transfers_of(comm.at(*at), result.transfers);
    // Operations that follow this one for the same peer, which are not worked on before it.
    at = comm.at(*at).pointer(Field::proxy_next);
  }
}

void read_name(const View& comm, Communicator& result) {
  const auto config = comm.layout().offset(Field::config);
  const auto member = comm.layout().offset(Field::config_name);
  if (!config || !member) return;
  const auto text = comm.memory().read_value<Address>(comm.base() + *config + *member);
  if (!text || *text < 4096) return;
  result.group_name = comm.memory().read_cstring(*text, max_name);
}

void read_planner(const View& comm, Communicator& result) {
  const auto planner = comm.layout().offset(Field::planner);
  if (!planner) return;
  const View view = comm.at(comm.base() + *planner);
  const auto collectives = view.get<std::int32_t>(Field::planned_collectives);
  const auto messages = view.get<std::int32_t>(Field::planned_p2p);
  constexpr std::int32_t most = 1 << 20;  // of one group: more is no counter
  const auto counts = [](std::optional<std::int32_t> count) {
    return count && *count >= 0 && *count <= most;
  };
  if (counts(collectives) && counts(messages)) result.waiting = *collectives + *messages;
}

}  // namespace

const char* name(FoundBy found_by) {
  switch (found_by) {
    case FoundBy::list:
      return "list";
    case FoundBy::magic:
      return "magic";
    case FoundBy::fingerprint:
      return "fingerprint";
  }
  return "fingerprint";
}

std::optional<Communicator> decode(const memory::Reader& memory, const Layout& layout, Address address,
                                   FoundBy found_by) {
  if (!layout.is_usable()) return std::nullopt;
  const View comm(memory, layout, address);
  Communicator result;
  result.address = address;
  result.found_by = found_by;
  const auto hash = comm.get<std::uint64_t>(Field::comm_hash);
  const auto rank = comm.get<std::int32_t>(Field::rank);
  const auto n_ranks = comm.get<std::int32_t>(Field::n_ranks);
  const auto device = comm.get<std::int32_t>(Field::cuda_device);
  if (!hash || !rank || !n_ranks || !device) return std::nullopt;
  // Until 2.22 the hash comes late in the set-up: then the marks alone tell.
  if (*hash == 0 && (!layout.has(Field::start_magic) || !is_being_set_up(comm))) {
    return std::nullopt;
  }
  if (*rank < 0 || *rank >= *n_ranks || *n_ranks > max_ranks || *device < 0 || *device >= max_devices) {
    return std::nullopt;
  }
  if (!has_marks(comm) || !is_consistent(comm)) return std::nullopt;
  result.comm_hash = *hash;
  result.rank = *rank;
  result.n_ranks = *n_ranks;
  result.cuda_device = *device;
  result.bus_id = comm.get<std::uint64_t>(Field::bus_id);
  result.n_nodes = comm.get<std::int32_t>(Field::n_nodes);
  result.init_state = comm.result(Field::init_state);
  result.async_result = comm.result(Field::async_result);
  result.peers_known = comm.flag(Field::peer_info_valid);
  result.finalizing = comm.flag(Field::finalize_called);
  result.destroyed = comm.word_flag(Field::destroy_flag);
  result.revoked = comm.word_flag(Field::revoked_flag);
  if (const auto flag = comm.get<Address>(Field::abort_flag); flag && *flag >= 4096) {
    const auto value = memory.read_value<std::uint32_t>(*flag);
    if (value && *value <= 1) result.aborted = *value != 0;
  }
  // 1 stands for "in no group"; in one, it is the next communicator of the group, or null for the last.
  if (const auto next = comm.get<Address>(Field::group_next)) result.in_group = *next != 1;
  result.op_count = comm.get<std::uint64_t>(Field::op_count);
  result.coll_op_count = comm.get<std::uint64_t>(Field::coll_op_count);
  if (const auto shared = comm.pointer(Field::shared_resources); shared && layout.has(Field::shared_owner)) {
    const auto owner = comm.at(*shared).get<Address>(Field::shared_owner);
    if (owner) result.split = *owner != address;
    // Before 2.24 only its resources have the number, which those that were split off it may share.
    if (!layout.has(Field::coll_op_count) && owner && *owner == address) {
      result.coll_op_count = comm.at(*shared).get<std::uint64_t>(Field::shared_coll_op_count);
    }
  }
  const auto graphs = comm.get<std::int32_t>(Field::captured_here);
  const auto shared_graphs = comm.get<std::int32_t>(Field::captured);
  if (graphs || shared_graphs) result.captured = graphs.value_or(0) > 0 || shared_graphs.value_or(0) > 0;
  result.launched = comm.get<std::array<std::uint64_t, 5>>(Field::sequence_numbers);
  read_name(comm, result);
  read_planner(comm, result);
  read_plans(comm, result);
  read_last_task(comm, result);
  read_proxy(comm, result);
  return result;
}

std::vector<Member> members(const memory::Reader& memory, const Layout& layout, Address address,
                            const std::vector<int>& ranks) {
  std::vector<Member> result;
  const View comm(memory, layout, address);
  const auto list = comm.pointer(Field::peer_info);
  const auto hash = comm.get<std::uint64_t>(Field::comm_hash);
  const int n_ranks = comm.get_or<std::int32_t>(Field::n_ranks, 0);
  if (!list || !hash || layout.peer_size == 0 || is_being_set_up(comm)) return result;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= n_ranks || n_ranks > max_ranks) continue;
    const View entry = comm.at(*list + static_cast<Address>(rank) * layout.peer_size);
    const auto host = entry.get<std::uint64_t>(Field::peer_host_hash);
    const auto pid = entry.get<std::uint64_t>(Field::peer_pid_hash);
    // Each entry says which rank it is of: so that another size than assumed tells nothing.
    if (entry.get<std::int32_t>(Field::peer_rank) != rank || !host || !pid) continue;
    Member member;
    member.rank = rank;
    member.cuda_device = entry.get_or<std::int32_t>(Field::peer_cuda_device, -1);
    member.bus_id = entry.get<std::uint64_t>(Field::peer_bus_id);
    // Each communicator adds its own hash to what is the same in all.
    member.host_hash = *host - *hash;
    member.pid_hash = *pid - *hash;
    result.push_back(member);
  }
  return result;
}

}  // namespace hangtrace::nccl
