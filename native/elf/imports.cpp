#include "elf/imports.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "elf/symbol_table.hpp"

namespace hangtrace::elf {

namespace {

constexpr std::uint64_t max_relocations = 64 << 20;  // bytes

bool is_slot(Machine machine, std::uint64_t info) {
  const auto type = ELF64_R_TYPE(info);
  if (machine == Machine::x86_64) return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT;
  return machine == Machine::aarch64 && (type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT);
}

// Numbers of the symbols that bear one of the names.
std::set<std::uint64_t> symbols_named(const SymbolTable& table, std::span<const std::string_view> names) {
  const auto positions = table.positions(names);
  std::set<std::uint64_t> numbers;
  std::uint64_t number = 0;
  table.each([&](const Elf64_Sym& symbol) {
    if (positions.contains(symbol.st_name)) numbers.insert(number);
    ++number;
  });
  return numbers;
}

}  // namespace

std::vector<Address> import_slots(const Module& module, std::span<const std::string_view> names) {
  std::vector<Address> slots;
  const auto table = SymbolTable::of(module, SHT_DYNSYM);
  if (!table) return slots;
  const auto wanted = symbols_named(*table, names);
  for (const Section& section : module.sections()) {
    if (wanted.empty() || section.type != SHT_RELA) continue;
    const auto bytes = module.section_bytes(section, max_relocations);
    if (!bytes) continue;
    for (std::size_t at = 0; at + sizeof(Elf64_Rela) <= bytes->size(); at += sizeof(Elf64_Rela)) {
      Elf64_Rela entry;
      std::memcpy(&entry, bytes->data() + at, sizeof entry);
      if (is_slot(module.machine(), entry.r_info) && wanted.contains(ELF64_R_SYM(entry.r_info))) {
        slots.push_back(entry.r_offset);
      }
    }
  }
  return slots;
}

}  // namespace hangtrace::elf
