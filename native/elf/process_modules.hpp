#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "elf/module.hpp"
#include "elf/module_cache.hpp"
#include "elf/perf_map.hpp"
#include "memory/reader.hpp"
#include "proc/maps.hpp"

namespace hangtrace::elf {

struct Location {
  const proc::Mapping* mapping;
  Module* module;  // null: no file behind it, or the file could not be opened
                   // (code moved onto huge pages belongs to the file whose text it holds)
  Address bias;    // address in the process = va + bias (0 without module)
  Address va;
};

/// One process's address space: which module lies at which address. The mappings, reader and cache must
/// outlive it. Modules are opened only when an address in them is asked for.
class ProcessModules {
 public:
  /// `unlisted`: what `mappings` leaves out, if that holds code only; also outlives it.
  ProcessModules(ModuleCache& cache, std::string proc_root, int pid,
                 const std::vector<proc::Mapping>& mappings, const memory::Reader& reader,
                 proc::UnlistedMappings* unlisted = nullptr);

  /// nullopt: nothing listed is mapped there.
  std::optional<Location> locate(Address address);
  /// Only executable mappings.
  std::optional<Location> locate_code(Address address);
  /// Address in the process of a symbol defined by the module mapped at `mapping`.
  std::optional<Address> find_symbol(const proc::Mapping& mapping, std::string_view name);

  /// All, or those of code and what more was asked for.
  const std::vector<proc::Mapping>& mappings() const { return mappings_; }
  /// Also of those that are not listed; nullptr: nothing is mapped there.
  const proc::Mapping* mapping_at(Address address) const;
  const memory::Reader& reader() const { return reader_; }
  /// Names of code made at run time, from the program's perf map; only where anonymous executable memory is
  /// mapped, or that of a memory file.
  std::vector<std::optional<JitSymbol>> jit_symbols(std::span<const Address> addresses);

  /// Why modules could not be opened, one sentence each.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  struct Slot {
    bool tried = false;
    Module* module = nullptr;
    Address bias = 0;
  };
  const Slot& resolve(std::size_t index);
  void resolve_file(std::size_t index);
  void resolve_moved_text(std::size_t index);
  bool holds_text(const proc::Mapping& mapping, const Slot& slot) const;
  ModuleCache& cache_;
  std::string proc_root_;
  int pid_;
  const std::vector<proc::Mapping>& mappings_;
  const memory::Reader& reader_;
  proc::UnlistedMappings* unlisted_;
  std::vector<Slot> slots_;
  std::vector<std::string> problems_;
  PerfMap perf_map_;
};

}  // namespace hangtrace::elf
