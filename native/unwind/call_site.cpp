#include "unwind/call_site.hpp"

#include <algorithm>
#include <array>

#include "proc/maps.hpp"

namespace hangtrace::unwind {

namespace {

constexpr std::size_t longest_call = 16;
constexpr Address max_tail_caller = 64 << 10;  // bytes of a function searched for tail calls
constexpr std::size_t max_tail_callers = 32;   // of one call
constexpr std::size_t max_code = 16 << 20;     // bytes searched for tail calls in all
constexpr Address max_entry = 16 << 10;        // bytes of a function read without table
constexpr Address max_loop = 4 << 10;          // bytes of a loop searched for calls
constexpr Address max_unknown = 256 << 10;     // code without table: farthest begin of its function

}  // namespace

CallInstruction call_before(const elf::Module& module, Address return_va) {
  const MachineCode* const machine = machine_code(module.machine());
  if (machine == nullptr) return {};
  std::array<std::uint8_t, longest_call> bytes{};
  for (const std::size_t size : {machine->longest_call, machine->shortest_call}) {
    const auto before = std::span(bytes).first(size);
    if (return_va < size || !module.read_va(return_va - size, std::as_writable_bytes(before))) continue;
    CallInstruction call = machine->call_ending_at(before, return_va);
    if (call.direct && !module.is_code(*call.direct)) call.direct.reset();
    return call;
  }
  return {};
}

CallResolver::CallResolver(elf::ProcessModules& modules, TableCache& tables)
    : modules_(modules),
      tables_(tables),
      machine_(machine_code(host_layout.machine)),
      code_left_(max_code),
      pages_(modules.reader()) {}

const MachineCode* CallResolver::machine_at(const elf::Location& location) const {
  return location.module == nullptr ? machine_ : machine_code(location.module->machine());
}

Code CallResolver::read_code(const elf::Location& location, std::span<std::uint8_t> into,
                             std::size_t least) const {
  for (std::size_t size = into.size(); size >= least && size != 0; --size) {
    const auto bytes = std::as_writable_bytes(into.first(size));
    const bool read = location.module != nullptr ? location.module->read_va(location.va, bytes)
                                                 : pages_.read(location.va, bytes);
    if (read) return into.first(size);
  }
  return {};
}

bool CallResolver::has_table(const elf::Location& location) {
  return location.module != nullptr && tables_.of(*location.module).function(location.va);
}

bool CallResolver::is_signal_trampoline(const elf::Location& location) {
  const MachineCode* const machine = machine_at(location);
  std::array<std::uint8_t, longest_trampoline> bytes{};
  return machine != nullptr && machine->is_signal_trampoline(read_code(location, bytes, 8));
}

EntryPath CallResolver::entry(const elf::Location& location, Address begin, Address end) {
  const MachineCode* const machine = machine_at(location);
  if (machine == nullptr || location.module == nullptr || begin > location.va || location.va > end ||
      end - begin > max_entry) {
    return {};
  }
  std::vector<std::uint8_t> bytes(end - begin);
  if (!location.module->read_va(begin, std::as_writable_bytes(std::span(bytes)))) return {};
  const Code code(bytes);
  return machine->read_entry(code.first(location.va - begin), code.subspan(location.va - begin));
}

std::optional<Registers> CallResolver::straight_return(const elf::Location& location,
                                                       const Registers& registers,
                                                       const StackMemory& memory) {
  const MachineCode* const machine = machine_at(location);
  if (machine == nullptr) return std::nullopt;
  std::array<std::uint8_t, longest_straight_return> bytes{};
  auto after = machine->straight_return(read_code(location, bytes, 1), registers, memory);
  if (!after) return std::nullopt;
  // A frame pointer that is none could lead inwards.
  const unsigned stack_pointer = after->layout().stack_pointer;
  if (*after->get(stack_pointer) <= *registers.get(stack_pointer)) return std::nullopt;
  return follows_call(*after->get(after->layout().program_counter)) ? after : std::nullopt;
}

std::optional<Address> CallResolver::slot_value(Address slot) {
  const auto known = slots_.find(slot);
  if (known != slots_.end()) return known->second;
  return slots_.emplace(slot, modules_.reader().read_value<Address>(slot)).first->second;
}

Address CallResolver::through_stub(Address address) {
  const auto location = modules_.locate_code(address);
  if (!location || location->module == nullptr) return address;
  const MachineCode* const machine = machine_at(*location);
  if (machine == nullptr) return address;
  std::array<std::uint8_t, longest_stub> bytes{};
  const auto slot = machine->stub_slot(read_code(*location, bytes, 6), address);
  const auto target = slot ? slot_value(*slot) : std::nullopt;
  return target.value_or(address);
}

CallInstruction CallResolver::call_in_memory(Address return_address) const {
  if (machine_ == nullptr) return {};
  std::array<std::uint8_t, longest_call> bytes{};
  const auto before = std::span(bytes).first(machine_->longest_call);
  const bool read = pages_.read(return_address - before.size(), std::as_writable_bytes(before));
  return read ? machine_->call_ending_at(before, return_address) : CallInstruction{};
}

// All addresses of the instruction are those in the process.
std::optional<CallInstruction> CallResolver::call_at(Address return_address, elf::Location& location) {
  if (return_address == 0) return std::nullopt;
  const auto found = modules_.locate_code(return_address - 1);
  if (!found) return std::nullopt;
  location = *found;
  CallInstruction call;
  if (found->module != nullptr) {
    call = call_before(*found->module, return_address - found->bias);
    if (call.direct) *call.direct += found->bias;
    if (call.slot) *call.slot += found->bias;
  } else if (machine_ != nullptr && return_address - machine_->longest_call >= found->mapping->start) {
    call = call_in_memory(return_address);
    if (call.direct && !modules_.locate_code(*call.direct)) call.direct.reset();
  }
  return call.any() ? std::optional(call) : std::nullopt;
}

// Whether nobody can write to where the pointer lies.
bool CallResolver::is_constant(Address slot) const {
  const proc::Mapping* const mapping = modules_.mapping_at(slot);
  return mapping != nullptr && !mapping->writable;
}

CallResolver::Exits CallResolver::find_exits(const elf::Location& location, const FunctionRange& range) {
  Exits exits;
  exits.open = true;
  const MachineCode* const machine = machine_at(location);
  const std::size_t size = range.end - range.begin;
  if (machine == nullptr || size > max_tail_caller || size > code_left_) return exits;
  code_left_ -= size;
  std::vector<std::uint8_t> code(size);
  std::vector<Jump> jumps;
  const Address begin = range.begin + location.bias;
  const Address end = range.end + location.bias;
  if (!location.module->read_va(range.begin, std::as_writable_bytes(std::span(code))) ||
      !machine->find_jumps(code, begin, jumps)) {
    return exits;
  }
  exits.open = false;
  const Layout& layout = location.module->machine() == elf::Machine::aarch64 ? aarch64 : x86_64;
  const std::int64_t at_entry = layout.link_register == max_registers ? sizeof(Address) : 0;
  for (const Jump& jump : jumps) {
    switch (jump.kind) {
      case Jump::Kind::always:
      case Jump::Kind::conditional:
        if (jump.target < begin || jump.target >= end) exits.targets.push_back(jump.target);
        break;
      case Jump::Kind::pointer:
        if (const auto target = slot_value(jump.target)) exits.targets.push_back(*target);
        exits.open = exits.open || !is_constant(jump.target);
        break;
      case Jump::Kind::computed: {
        // A function that is left by a tail call has taken its frame off the stack.
        const auto answer = tables_.of(*location.module).row(jump.target - location.bias);
        const Row* const row = answer.row.get();
        const bool has_frame =
            row != nullptr && (row->cfa_kind == CfaKind::expression ||
                               (row->cfa_kind == CfaKind::register_offset &&
                                (row->cfa_register != layout.stack_pointer || row->cfa_offset != at_entry)));
        exits.open = exits.open || !has_frame;
        break;
      }
      case Jump::Kind::as_return:
        exits.open = true;
        break;
    }
  }
  return exits;
}

const CallResolver::Exits& CallResolver::exits_of(Address place) {
  static const Exits anywhere{true, {}};
  const auto location = modules_.locate_code(place);
  if (!location || location->module == nullptr) return anywhere;
  const auto range = tables_.of(*location->module).function(location->va);
  if (!range) return anywhere;
  const Address begin = range->begin + location->bias;
  const auto known = exits_.find(begin);
  if (known != exits_.end()) return known->second;
  return exits_.emplace(begin, find_exits(*location, *range)).first->second;
}

// How well a call fits whose target is known: it may lead on by tail calls, and by the jumps from a function
// to its cold part.
template <class Inside>
Link CallResolver::reach(Address target, Inside inside) {
  if (inside(target)) return Link::direct;
  std::vector<Address> places{target};
  Link best = Link::none;
  for (std::size_t next = 0; next < places.size(); ++next) {
    if (next == max_tail_callers) return std::max(best, Link::indirect);
    const auto add = [&](Address place) {
      if (std::ranges::find(places, place) == places.end()) places.push_back(place);
    };
    const Address behind_stub = through_stub(places[next]);
    if (behind_stub != places[next]) {
      if (inside(behind_stub)) return next == 0 ? Link::direct : Link::tail_call;
      add(behind_stub);
      continue;
    }
    const Exits& exits = exits_of(places[next]);
    if (exits.open) best = Link::indirect;
    for (const Address place : exits.targets) {
      if (inside(place)) return Link::tail_call;
      add(place);
    }
  }
  return best;
}

template <class Inside>
Link CallResolver::link_if(Address return_address, bool caller_has_table, Inside inside) {
  elf::Location location{};
  const auto call = call_at(return_address, location);
  if (!call) {
    const auto at = modules_.locate_code(return_address);
    return at && at->module != nullptr && is_signal_trampoline(*at) ? Link::indirect : Link::none;
  }
  if (caller_has_table && !has_table(location)) return Link::none;
  const auto called = call->slot ? slot_value(*call->slot) : std::nullopt;
  const bool was_another = call->slot && (!called || !is_constant(*call->slot));  // or may have been
  Link best = call->indirect || was_another ? Link::indirect : Link::none;
  if (call->direct) best = std::max(best, reach(*call->direct, inside));
  if (called) best = std::max(best, reach(*called, inside));
  return best;
}

Link CallResolver::link(Address return_address, Address begin, Address end) {
  bool entered_at_begin = true;
  const Link best = link_if(return_address, true, [&](Address target) {
    if (target == begin) return true;
    if (target <= begin || target >= end) return false;
    entered_at_begin = false;
    return true;
  });
  // A call enters a function at its begin, or at another entry of it; only a jump (to a cold part) goes
  // elsewhere.
  return best == Link::direct && !entered_at_begin ? Link::indirect : best;
}

Link CallResolver::link_of(Address target, Address begin, Address end) {
  return reach(target, [&](Address place) { return place >= begin && place < end; });
}

Link CallResolver::link_to_unknown(Address return_address, Address pc) {
  const auto here = modules_.locate_code(pc);
  if (!here) return Link::none;
  return link_if(return_address, false, [&](Address target) {
    if (target > pc || pc - target > max_unknown || target < here->mapping->start) return false;
    return here->module == nullptr || !tables_.of(*here->module).function(target - here->bias);
  });
}

Link CallResolver::link_to_begin(Address return_address, Address begin) {
  return link_if(return_address, false, [begin](Address target) { return target == begin; });
}

bool CallResolver::follows_call(Address return_address) {
  elf::Location location{};
  return call_at(return_address, location).has_value();
}

bool CallResolver::follows_call_in_memory(Address return_address) const {
  return call_in_memory(return_address).any();
}

bool CallResolver::follows_system_call(Address pc) {
  constexpr Address longest = 4;
  const auto location = pc < longest ? std::nullopt : modules_.locate_code(pc - longest);
  if (!location) return false;
  const MachineCode* const machine = machine_at(*location);
  std::array<std::uint8_t, longest> bytes{};
  const Code code = read_code(*location, bytes, longest);
  return machine != nullptr && code.size() == longest && machine->ends_in_system_call(code);
}

std::optional<Address> CallResolver::callee(Address return_address) {
  elf::Location location{};
  const auto call = call_at(return_address, location);
  if (!call) return std::nullopt;
  if (call->slot) return slot_value(*call->slot);
  if (call->direct && !call->indirect) return through_stub(*call->direct);
  return std::nullopt;
}

std::vector<Address> CallResolver::called_in_loop(Address return_address) {
  const auto location = modules_.locate_code(return_address - 1);
  if (!location || location->module == nullptr) return {};
  const MachineCode* const machine = machine_at(*location);
  const auto range = tables_.of(*location->module).function(location->va);
  if (machine == nullptr || !range || range->end - range->begin > max_tail_caller) return {};
  std::vector<std::uint8_t> code(range->end - range->begin);
  std::vector<Jump> jumps;
  const Address begin = range->begin + location->bias;
  if (!location->module->read_va(range->begin, std::as_writable_bytes(std::span(code))) ||
      !machine->find_jumps(code, begin, jumps)) {
    return {};
  }
  Address first = 0;
  Address last = 0;
  for (const Jump& jump : jumps) {
    const bool back = jump.kind == Jump::Kind::always || jump.kind == Jump::Kind::conditional;
    if (!back || jump.target < begin || jump.target >= return_address || jump.from < return_address) continue;
    if (last == 0 || jump.from - jump.target < last - first) {
      first = jump.target;
      last = jump.from;
    }
  }
  std::vector<Address> called;
  if (last - first > max_loop) return called;
  for (Address at = first + 1; at <= last; ++at) {
    const auto target = callee(at);
    if (target && std::ranges::find(called, *target) == called.end()) called.push_back(*target);
  }
  return called;
}

}  // namespace hangtrace::unwind
