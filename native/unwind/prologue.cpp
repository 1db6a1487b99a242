#include "unwind/prologue.hpp"

#include <algorithm>

namespace hangtrace::unwind {

namespace {

constexpr Address max_function = 256 << 10;  // bytes searched for what moves the stack pointer

}  // namespace

Prologue read_prologue(const elf::Module& module, Address begin, Address pc, Address end) {
  const MachineCode* const machine = machine_code(module.machine());
  if (machine == nullptr || pc <= begin || end < pc) return {};
  const bool whole = end - begin <= max_function;
  std::vector<std::uint8_t> bytes(std::min((whole ? end : pc) - begin, max_function));
  if (!module.read_va(begin, std::as_writable_bytes(std::span(bytes)))) return {};
  const Code code(bytes);
  const std::size_t before = std::min(pc - begin, code.size());
  return machine->read_prologue(code.first(before), whole, code.subspan(before));
}

}  // namespace hangtrace::unwind
