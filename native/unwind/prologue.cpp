#include "unwind/prologue.hpp"

#include <algorithm>

namespace hangtrace::unwind {

namespace {

constexpr Address max_function = 64 << 10;  // bytes searched for a variable stack adjustment

}  // namespace

Prologue read_prologue(const elf::Module& module, Address begin, Address pc) {
  const MachineCode* const machine = machine_code(module.machine());
  if (machine == nullptr || pc <= begin) return {};
  std::vector<std::uint8_t> bytes(std::min(pc - begin, max_function));
  if (!module.read_va(begin, std::as_writable_bytes(std::span(bytes)))) return {};
  return machine->read_prologue(bytes, bytes.size() == pc - begin);
}

}  // namespace hangtrace::unwind
