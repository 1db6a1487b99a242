#include "unwind/registers.hpp"

namespace hangtrace::unwind {

Registers Registers::from_pc_sp(Address pc, Address sp, const Layout& layout) {
  Registers registers(layout);
  registers.set(layout.program_counter, pc);
  registers.set(layout.stack_pointer, sp);
  return registers;
}

std::optional<std::uint64_t> Registers::get(unsigned number) const {
  if (!has(number)) return std::nullopt;
  return values_[number];
}

void Registers::set(unsigned number, std::uint64_t value) {
  if (number >= max_registers) return;
  values_[number] = value;
  known_ |= std::uint64_t{1} << number;
}

void Registers::forget(unsigned number) {
  if (number < max_registers) known_ &= ~(std::uint64_t{1} << number);
}

}  // namespace hangtrace::unwind
