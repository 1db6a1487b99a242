#include "unwind/call_site.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace hangtrace::unwind {

namespace {

constexpr std::size_t longest_call = 7;
constexpr Address max_tail_caller = 4096;   // bytes of a function searched for a tail call
constexpr Address max_unknown = 256 << 10;  // code without table: farthest begin of its function

Address relative(Address next, const std::uint8_t* field) {
  std::int32_t offset;
  std::memcpy(&offset, field, sizeof offset);
  return next + static_cast<Address>(std::int64_t{offset});
}

// Length of `ff /2` with its operand (Intel SDM, volume 2, tables 2-2 and 2-3), 0 if it is another
// instruction.
std::size_t indirect_call_length(std::span<const std::uint8_t> code) {
  std::size_t at = 0;
  if (at < code.size() && (code[at] & 0xf0) == 0x40) ++at;  // REX
  if (at + 2 > code.size() || code[at] != 0xff || (code[at + 1] >> 3 & 7) != 2) return 0;
  const unsigned mode = code[at + 1] >> 6;
  const unsigned rm = code[at + 1] & 7;
  std::size_t length = at + 2;
  if (mode == 3) return length;
  if (rm == 4) {
    if (length >= code.size()) return 0;
    if (mode == 0 && (code[length] & 7) == 5) length += 4;
    ++length;
  }
  if (mode == 1) length += 1;
  if (mode == 2 || (mode == 0 && rm == 5)) length += 4;
  return length;
}

}  // namespace

CallInstruction call_before(const elf::Module& module, Address return_va) {
  CallInstruction call;
  std::array<std::uint8_t, longest_call> code{};
  if (return_va < longest_call ||
      !module.read_va(return_va - longest_call, std::as_writable_bytes(std::span(code)))) {
    return call;
  }
  if (code[2] == 0xe8) {
    const Address target = relative(return_va, &code[3]);
    if (module.is_code(target)) call.direct = target;
  }
  if (code[1] == 0xff && code[2] == 0x15) call.slot = relative(return_va, &code[3]);
  for (std::size_t length = 2; length <= longest_call; ++length) {
    if (indirect_call_length(std::span(code).last(length)) == length) call.indirect = true;
  }
  return call;
}

bool is_signal_trampoline(const elf::Module& module, Address va) {
  constexpr std::array<std::uint8_t, 9> trampoline{0x48, 0xc7, 0xc0, 0x0f, 0,
                                                   0,    0,    0x0f, 0x05};  // rt_sigreturn
  std::array<std::uint8_t, 9> code{};
  return module.read_va(va, std::as_writable_bytes(std::span(code))) && code == trampoline;
}

// jmp [rip + disp32], with endbr64 (-fcf-protection) and bnd (MPX, IBT) prefixes.
std::optional<Address> CallResolver::stub_slot(const elf::Module& module, Address va) {
  std::array<std::uint8_t, 11> code{};
  std::size_t size = code.size();
  while (size >= 6 && !module.read_va(va, std::as_writable_bytes(std::span(code).first(size)))) --size;
  if (size < 6) return std::nullopt;
  std::size_t at = 0;
  constexpr std::array<std::uint8_t, 4> endbr64{0xf3, 0x0f, 0x1e, 0xfa};
  if (std::equal(endbr64.begin(), endbr64.end(), code.begin())) at += endbr64.size();
  if (code[at] == 0xf2) ++at;
  if (at + 6 > size || code[at] != 0xff || code[at + 1] != 0x25) return std::nullopt;
  return relative(va + at + 6, &code[at + 2]);
}

std::optional<Address> CallResolver::slot_value(Address slot) {
  const auto known = slots_.find(slot);
  if (known != slots_.end()) return known->second;
  return slots_.emplace(slot, modules_.reader().read_value<Address>(slot)).first->second;
}

Address CallResolver::through_stub(Address address) {
  const auto location = modules_.locate_code(address);
  if (!location || location->module == nullptr) return address;
  const auto slot = stub_slot(*location->module, location->va);
  const auto target = slot ? slot_value(*slot + location->bias) : std::nullopt;
  return target.value_or(address);
}

std::optional<CallInstruction> CallResolver::call_at(Address return_address, elf::Location& location) {
  if (return_address == 0) return std::nullopt;
  const auto found = modules_.locate_code(return_address - 1);
  if (!found || found->module == nullptr) return std::nullopt;
  location = *found;
  const CallInstruction call = call_before(*found->module, return_address - found->bias);
  return call.any() ? std::optional(call) : std::nullopt;
}

// Whether the function at `function` has a jump with a 32-bit offset, or through a pointer, to where `inside`
// is true: a tail call, or the jump from a function to its cold part.
template <class Inside>
bool CallResolver::jumps_into(Address function, Inside inside) {
  const auto location = modules_.locate_code(function);
  if (!location || location->module == nullptr) return false;
  const auto range = tables_.of(*location->module).function(location->va);
  if (!range || range->begin != location->va) return false;
  std::vector<std::uint8_t> code(std::min(range->end - range->begin, max_tail_caller));
  if (!location->module->read_va(range->begin, std::as_writable_bytes(std::span(code)))) return false;
  for (std::size_t at = 0; at + 6 <= code.size() + 1; ++at) {
    const bool jump = code[at] == 0xe9 && at + 5 <= code.size();
    const bool longer = at + 6 <= code.size();
    const bool branch = longer && code[at] == 0x0f && (code[at + 1] & 0xf0) == 0x80;
    const bool pointer = longer && code[at] == 0xff && code[at + 1] == 0x25;
    if (jump) {
      const Address target = relative(function + at + 5, &code[at + 1]);
      if (inside(target)) return true;
      const auto there = modules_.locate_code(target);
      if (there && there->module != nullptr && inside(through_stub(target))) return true;
    }
    if (branch && inside(relative(function + at + 6, &code[at + 2]))) return true;
    if (pointer) {
      const auto target = slot_value(relative(function + at + 6, &code[at + 2]));
      if (target && inside(*target)) return true;
    }
  }
  return false;
}

template <class Inside>
Link CallResolver::link_if(Address return_address, Inside inside) {
  elf::Location location{};
  const auto call = call_at(return_address, location);
  if (!call && location.module != nullptr &&
      is_signal_trampoline(*location.module, return_address - location.bias)) {
    return Link::indirect;
  }
  if (!call || !tables_.of(*location.module).function(location.va)) return Link::none;
  Link best = call->indirect || call->slot ? Link::indirect : Link::none;
  const auto consider = [&](Address target) {
    if (inside(target) || inside(through_stub(target))) return Link::direct;
    return jumps_into(through_stub(target), inside) ? Link::tail_call : best;
  };
  if (call->direct) best = std::max(best, consider(*call->direct + location.bias));
  if (call->slot) {
    if (const auto target = slot_value(*call->slot + location.bias)) best = std::max(best, consider(*target));
  }
  return best;
}

Link CallResolver::link(Address return_address, Address begin, Address end) {
  bool entered_at_begin = true;
  const Link best = link_if(return_address, [&](Address target) {
    if (target == begin) return true;
    if (target <= begin || target >= end) return false;
    entered_at_begin = false;
    return true;
  });
  // A call enters a function at its begin; only a jump (to a cold part) may go elsewhere.
  return best == Link::direct && !entered_at_begin ? Link::none : best;
}

Link CallResolver::link_to_unknown(Address return_address, Address pc) {
  const auto here = modules_.locate_code(pc);
  if (!here) return Link::none;
  return link_if(return_address, [&](Address target) {
    if (target > pc || pc - target > max_unknown || target < here->mapping->start) return false;
    return here->module == nullptr || !tables_.of(*here->module).function(target - here->bias);
  });
}

bool CallResolver::follows_call(Address return_address) {
  elf::Location location{};
  return call_at(return_address, location).has_value();
}

std::optional<Address> CallResolver::callee(Address return_address) {
  elf::Location location{};
  const auto call = call_at(return_address, location);
  if (!call) return std::nullopt;
  if (call->slot) return slot_value(*call->slot + location.bias);
  if (call->direct && !call->indirect) return through_stub(*call->direct + location.bias);
  return std::nullopt;
}

}  // namespace hangtrace::unwind
