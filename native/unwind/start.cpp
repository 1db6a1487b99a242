// The function that a thread or the process was started with: the C library calls it through a pointer, but
// it is known all the same.
#include <algorithm>
#include <array>

#include "unwind/walk.hpp"

namespace hangtrace::unwind {

namespace {

constexpr Address max_static_tls = 256 << 10;      // bytes searched for the descriptor above the stack
constexpr Address descriptor_alignment = 64;       // glibc: TCB_ALIGNMENT
constexpr std::size_t longest_process_entry = 64;  // bytes

}  // namespace

std::optional<Address> Walk::started_function(const Stack& stack, std::size_t frame) const {
  const std::size_t count = stack.frames.size();
  if (!stack.complete() || frame + 1 >= count || stack.frames[frame].module == nullptr) return std::nullopt;
  if (frame + 2 == count) {
    if (const auto function = thread_function(stack.frames[frame])) return function;
  }
  // Between main and the entry there are one or two functions of the C library.
  return frame + 3 >= count ? main_function(stack.frames[frame], stack.frames.back()) : std::nullopt;
}

std::optional<Address> Walk::thread_function(const Frame& caller) const {
  const MachineCode* const machine = machine_code(caller.module->machine());
  const Address return_va = caller.pc - caller.bias;
  std::array<std::uint8_t, longest_start_call> before{};
  if (machine == nullptr || return_va < before.size() ||
      !caller.module->read_va(return_va - before.size(), std::as_writable_bytes(std::span(before)))) {
    return std::nullopt;
  }
  const auto field = machine->start_field(before);
  if (!field) return std::nullopt;
  const Address first = (caller.sp + descriptor_alignment - 1) / descriptor_alignment * descriptor_alignment;
  for (Address at = first; at < first + max_static_tls; at += descriptor_alignment) {
    if (--context_.budget.words < 0 || !context_.memory.word(at)) return std::nullopt;
    if (!machine->is_thread_descriptor(context_.memory, at)) continue;
    const auto function = context_.memory.word(at + *field);
    const auto location = function ? context_.modules.locate_code(*function) : std::nullopt;
    if (!location || location->module == nullptr) return std::nullopt;
    const auto range = context_.tables.of(*location->module).function(location->va);
    return range && range->begin == location->va ? function : std::nullopt;
  }
  return std::nullopt;
}

std::optional<Address> Walk::main_function(const Frame& caller, const Frame& entry) const {
  if (entry.module == nullptr) return std::nullopt;
  const MachineCode* const machine = machine_code(caller.module->machine());
  std::array<std::uint8_t, 8> after{};
  if (machine == nullptr ||
      !caller.module->read_va(caller.pc - caller.bias, std::as_writable_bytes(std::span(after))) ||
      !machine->exits_with_result(after)) {
    return std::nullopt;
  }
  const auto range = context_.tables.of(*entry.module).function(entry.va);
  const MachineCode* const entry_machine = machine_code(entry.module->machine());
  if (!range || entry_machine == nullptr) return std::nullopt;
  std::vector<std::uint8_t> code(std::min<Address>(range->end - range->begin, longest_process_entry));
  if (!entry.module->read_va(range->begin, std::as_writable_bytes(std::span(code)))) return std::nullopt;
  const CallInstruction given = entry_machine->main_function(code, range->begin + entry.bias);
  if (given.direct) return given.direct;
  return given.slot ? context_.modules.reader().read_value<Address>(*given.slot) : std::nullopt;
}

}  // namespace hangtrace::unwind
