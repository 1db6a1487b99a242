#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "elf/module.hpp"

namespace hangtrace::elf {

struct Symbol {
  // Demangled. What a compiler has split off keeps its suffix: `f.part.0`, `f() [clone .cold]`.
  std::string name;
  Address start;       // va
  std::uint64_t size;  // 0: the symbol table does not say
};

struct SymbolQuery {
  Module* module;  // may be null: no answer
  Address va;      // an address in the function: of a return address, one less
};

/// All of these may be called from several threads, of which one at a time searches.
///
/// Names for all queries: one linear pass over the symbol tables of each module (.symtab, .dynsym,
/// .gnu_debugdata if built with liblzma) for all its addresses that were not asked before. Answer i is null
/// if no function symbol covers query i. Pointers live as long as the module.
std::vector<const Symbol*> symbolize(std::span<const SymbolQuery> queries);

/// The same from separate debug files (elf/debug_file.hpp), for what symbolize cannot name. Their tables are
/// read only if they are not larger than 48 MiB, two million symbols.
std::vector<const Symbol*> symbolize_separate(std::span<const SymbolQuery> queries);

/// va of defined symbols by raw (mangled) name, exported or local; one pass for all names.
std::vector<std::optional<Address>> find_symbols(Module& module, std::span<const std::string_view> names);
std::optional<Address> find_symbol(Module& module, std::string_view name);

}  // namespace hangtrace::elf
