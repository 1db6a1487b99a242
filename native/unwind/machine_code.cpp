#include "unwind/machine_code.hpp"

namespace hangtrace::unwind {

const MachineCode* machine_code(elf::Machine machine) {
  switch (machine) {
    case elf::Machine::x86_64:
      return &x86_64_code();
    case elf::Machine::aarch64:
      return &aarch64_code();
    case elf::Machine::other:
      break;
  }
  return nullptr;
}

}  // namespace hangtrace::unwind
