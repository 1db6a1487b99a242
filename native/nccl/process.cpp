#include "nccl/process.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "elf/symbols.hpp"
#include "memory/file_reader.hpp"
#include "memory/page_reader.hpp"
#include "nccl/heaps.hpp"
#include "nccl/libraries.hpp"
#include "nccl/search.hpp"
#include "proc/maps.hpp"

namespace hangtrace::nccl {

namespace {

constexpr std::size_t max_listed = 4096;
constexpr std::size_t max_peers = 65536;

// struct rasPeerInfo, by the debug information of 2.24.3 to 2.32.3: its last two members are there
// since 2.26.
struct PeerInfo {
  std::array<std::byte, 28> address;
  std::int32_t pid;
  std::uint64_t cuda_devices;
  std::uint64_t nvml_devices;
  std::uint64_t host_hash;
  std::uint64_t pid_hash;
};
static_assert(sizeof(PeerInfo) == 64);

std::string address_text(std::span<const std::byte> bytes) {
  std::uint16_t family;
  std::memcpy(&family, bytes.data(), sizeof family);
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const host = bytes.data() + (family == AF_INET ? 4 : 8);
  if ((family != AF_INET && family != AF_INET6) ||
      inet_ntop(family, host, text.data(), static_cast<socklen_t>(text.size())) == nullptr) {
    return {};
  }
  std::uint16_t port;
  std::memcpy(&port, bytes.data() + 2, sizeof port);
  const std::string name =
      family == AF_INET6 ? "[" + std::string(text.data()) + "]" : std::string(text.data());
  return name + ":" + std::to_string(ntohs(port));
}

class Inspection {
 public:
  Inspection(const memory::Reader& memory, const Layout& layout) : memory_(memory), layout_(layout) {}

  std::vector<Communicator> listed(Address comms, Address n_comms) const {
    std::vector<Communicator> result;
    const auto list = memory_.read_value<Address>(comms);
    const auto count = memory_.read_value<std::int32_t>(n_comms);
    if (!list || !count || *count <= 0 || static_cast<std::size_t>(*count) > max_listed) return result;
    std::vector<Address> addresses(static_cast<std::size_t>(*count));
    if (!memory_.read(*list, std::as_writable_bytes(std::span(addresses)))) return result;
    for (const Address address : addresses) {  // one that was destroyed leaves a null
      if (address == 0) continue;
      if (auto found = decode(memory_, layout_, address, FoundBy::list)) result.push_back(std::move(*found));
    }
    return result;
  }

  std::vector<Peer> peers(Address list, Address n_peers, bool with_hashes) const {
    std::vector<Peer> result;
    const auto begin = memory_.read_value<Address>(list);
    const auto count = memory_.read_value<std::int32_t>(n_peers);
    if (!begin || !count || *count <= 0 || static_cast<std::size_t>(*count) > max_peers) return result;
    const std::size_t size = with_hashes ? sizeof(PeerInfo) : sizeof(PeerInfo) - 16;
    for (std::size_t i = 0; i < static_cast<std::size_t>(*count); ++i) {
      PeerInfo info{};
      if (!memory_.read(*begin + i * size, std::as_writable_bytes(std::span(&info, 1)).first(size))) break;
      Peer peer;
      peer.address = address_text(info.address);
      peer.pid = info.pid;
      peer.cuda_devices = info.cuda_devices;
      peer.host_hash = info.host_hash;
      peer.pid_hash = info.pid_hash;
      // Where the size of an entry is another one than assumed, the second is garbage.
      if (peer.address.empty() || peer.pid <= 0) break;
      result.push_back(std::move(peer));
    }
    return result;
  }

 private:
  const memory::Reader& memory_;
  const Layout& layout_;
};

// The host's stub of a kernel is a function of the library that bears its name.
void name_kernels(const elf::Location& library, std::vector<Communicator>& communicators) {
  std::vector<elf::SymbolQuery> queries;
  for (const Communicator& communicator : communicators) {
    for (const Plan& plan : communicator.plans)
      queries.push_back({library.module, plan.kernel - library.bias});
  }
  const auto symbols = elf::symbolize(queries);
  std::size_t next = 0;
  for (Communicator& communicator : communicators) {
    for (Plan& plan : communicator.plans) {
      if (const elf::Symbol* const symbol = symbols[next++]) plan.kernel_name = symbol->name;
    }
  }
}

void add_new(std::vector<Communicator>& all, std::vector<Communicator> more) {
  for (Communicator& each : more) {
    const bool known = std::ranges::any_of(
        all, [&each](const Communicator& other) { return other.address == each.address; });
    if (!known) all.push_back(std::move(each));
  }
}

}  // namespace

const Inspector::Library& Inspector::library_of(elf::Module& module, Deadline deadline) {
  const auto known = libraries_.find(&module);
  if (known != libraries_.end()) return known->second;
  Library library{find_layout(module, deadline), {}, {}, {}, {}};
  constexpr std::array<std::string_view, 4> names = {"ncclComms", "nNcclComms", "rasPeers", "nRasPeers"};
  const auto symbols = elf::find_symbols(module, names);
  library.comms = symbols[0];
  library.n_comms = symbols[1];
  library.peers = symbols[2];
  library.n_peers = symbols[3];
  return libraries_.emplace(&module, std::move(library)).first->second;
}

Found Inspector::inspect(const Request& request, Deadline deadline) {
  Found found;
  const auto mappings = proc::read_maps(proc_root_, request.pid);
  if (!mappings) {
    found.problem = std::string("its mappings cannot be read: ") + std::strerror(errno);
    return found;
  }
  if (mappings->empty()) return found;  // it has ended
  // Not process_vm_readv: who waits there for the target's mmap lock cannot be killed.
  const memory::FileReader file(proc_root_, request.pid);
  if (!file.is_open()) {
    found.problem = "its memory may not be read";
    return found;
  }
  memory::PageReader memory(file);
  memory.begin();
  elf::ProcessModules modules(modules_, proc_root_, request.pid, *mappings, file);
  for (const elf::Location& location : libraries(modules, request.libraries)) {
    Found one = inspect_library(request, modules, location, memory, deadline);
    // Several may be loaded, of which as a rule one is used.
    if (found.library.empty() || (found.communicators.empty() && !one.communicators.empty()))
      std::swap(found, one);
    add_new(found.communicators, std::move(one.communicators));
    std::ranges::move(one.calls, std::back_inserter(found.calls));
    for (std::size_t i = 0; i < one.members.size(); ++i) {
      if (found.members[i].empty()) found.members[i] = std::move(one.members[i]);
    }
    if (found.problem.empty()) found.problem = std::move(one.problem);
  }
  return found;
}

Found Inspector::inspect_library(const Request& request, elf::ProcessModules& modules,
                                 const elf::Location& location, const memory::Reader& memory,
                                 Deadline deadline) {
  Found found;
  found.library = location.mapping->path;
  found.members.resize(request.members.size());
  if (location.module == nullptr) {
    found.problem = "its libnccl cannot be opened";
    return found;
  }
  found.build_id = location.module->build_id_hex();
  const Library& library = library_of(*location.module, deadline);
  found.layout_from = library.layout.from;
  const Inspection inspection(memory, library.layout);
  if (library.comms && library.n_comms) {
    found.communicators = inspection.listed(location.bias + *library.comms, location.bias + *library.n_comms);
  }
  if (library.peers && library.n_peers) {
    // The hashes came with 2.26, of which the older releases do not know.
    const bool with_hashes = library.layout.has(Field::peer_info_valid) || library.layout.comm_size >= 506752;
    found.peers =
        inspection.peers(location.bias + *library.peers, location.bias + *library.n_peers, with_hashes);
  }
  if (request.search || (found.communicators.empty() && request.members.empty())) {
    found.searched = true;
    const PageMap pages(proc_root_, request.pid);
    const auto heaps =
        malloc_heaps(modules, location, pages, proc_root_, request.pid, library.layout.comm_size);
    SearchResult more =
        search(modules.reader(), heaps ? *heaps : modules.mappings(), pages, library.layout, deadline);
    if (!more.complete) found.problem = "its memory could not be searched as a whole in time";
    add_new(found.communicators, std::move(more.found));
  }
  for (std::size_t i = 0; i < request.members.size(); ++i) {
    const auto& [address, ranks] = request.members[i];
    if (decode(memory, library.layout, address, FoundBy::list))
      found.members[i] = members(memory, library.layout, address, ranks);
  }
  name_kernels(location, found.communicators);
  const auto is_library_text = [&](Address address) {
    const proc::Mapping* const at = modules.mapping_at(address);
    return at != nullptr && at->inode == location.mapping->inode && at->path == location.mapping->path &&
           !at->writable;
  };
  for (const Caller& caller : request.callers) {
    if (auto call =
            call_on_stack(memory, caller.tid, caller.stack_pointer, found.communicators, is_library_text)) {
      found.calls.push_back(std::move(*call));
    }
  }
  return found;
}

}  // namespace hangtrace::nccl
