#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "elf/module.hpp"

namespace hangtrace::elf {

struct Symbol {
  std::string name;    // demangled
  Address start;       // va
  std::uint64_t size;  // 0: the symbol table does not say
};

struct SymbolQuery {
  Module* module;  // may be null: no answer
  Address va;      // an address in the function: of a return address, one less
};

/// Names for all queries: one linear pass over the symbol tables of each module (.symtab, .dynsym,
/// .gnu_debugdata if built with liblzma) for all its addresses that were not asked before. Answer i is null
/// if no function symbol covers query i. Pointers live as long as the module.
std::vector<const Symbol*> symbolize(std::span<const SymbolQuery> queries);

/// va of defined symbols by raw (mangled) name, exported or local; one pass for all names.
std::vector<std::optional<Address>> find_symbols(Module& module, std::span<const std::string_view> names);
std::optional<Address> find_symbol(Module& module, std::string_view name);

}  // namespace hangtrace::elf
