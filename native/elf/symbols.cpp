#include "elf/symbols.hpp"

#include <elf.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include "elf/debug_file.hpp"
#include "elf/demangle.hpp"
#include "elf/symbol_table.hpp"
#include "elf/xz.hpp"

namespace hangtrace::elf {

namespace {

constexpr std::uint64_t max_packed = 64 << 20;
constexpr std::size_t max_unpacked = 256 << 20;
constexpr std::uint64_t max_separate_symbols = 48 << 20;  // bytes
constexpr std::size_t max_aliases = 64;                   // of one address

using Answers = std::unordered_map<Address, const Symbol*>;  // by queried va

// Of the symbol caches of all modules: one question concerns many.
std::mutex searching;

}  // namespace

struct SymbolCache {
  Answers answers;
  Answers separate_answers;  // from the separate debug file
  std::unordered_map<Address, const Symbol*> by_start;
  std::deque<Symbol> symbols;  // stable addresses
  std::map<std::string, std::optional<Address>, std::less<>> by_name;
  bool debug_data_tried = false;
  std::shared_ptr<Module> debug_data;
};

SymbolCachePointer make_symbol_cache() {
  return SymbolCachePointer(new SymbolCache);
}
void DeleteSymbolCache::operator()(SymbolCache* cache) const {
  delete cache;
}

namespace {

bool is_function(const Elf64_Sym& symbol) {
  const unsigned type = ELF64_ST_TYPE(symbol.st_info);
  return symbol.st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_NOTYPE);
}

// All symbols that begin where the innermost one around an address does.
struct Found {
  Address start = 0;
  std::vector<Elf64_Sym> aliases;  // empty: nothing found

  void offer(const Elf64_Sym& symbol) {
    if (!aliases.empty() && symbol.st_value < start) return;
    if (!aliases.empty() && symbol.st_value > start) aliases.clear();
    start = symbol.st_value;
    if (aliases.size() < max_aliases) aliases.push_back(symbol);
  }
};

// The C library's public names are weak, beside a global one with underscores: `read` and `__read`. So the
// underscores count for more than the binding.
auto alias_order(const Elf64_Sym& symbol, const std::string& name) {
  const unsigned binding = ELF64_ST_BIND(symbol.st_info);
  const std::size_t underscores = name.starts_with("_Z") || name.starts_with("_R")
                                      ? 0
                                      : std::min(name.find_first_not_of('_'), name.size());
  const std::size_t at = name.find('@', 1);
  const int version = at == std::string::npos ? 1 : name.compare(at, 2, "@@") == 0 ? 0 : 2;
  return std::tuple(name.empty(), binding == STB_LOCAL, underscores, binding == STB_WEAK, version,
                    name.size(), name);
}

struct Name {
  std::string text;  // without version
  std::uint64_t size = 0;
};

Name best_name(const SymbolTable& table, const Found& found) {
  std::string best;
  const Elf64_Sym* chosen = nullptr;
  for (const Elf64_Sym& symbol : found.aliases) {
    std::string name = table.name(symbol.st_name);
    if (chosen != nullptr && alias_order(symbol, name) >= alias_order(*chosen, best)) continue;
    best = std::move(name);
    chosen = &symbol;
  }
  // Marks of the assembler, such as aarch64's "$x", name no function.
  if (chosen == nullptr || best.starts_with('$') || best.starts_with(".L")) return {};
  return {best.substr(0, best.find('@', 1)), chosen->st_size};
}

// Refuses nearly all symbols with one look-up: the first of the addresses asked for in the part of the span
// that the symbol begins in, or after that part.
class Filter {
 public:
  explicit Filter(const std::vector<Address>& wanted)
      : low_(wanted.front()), last_(parts(wanted.size()) - 1), first_(last_ + 1, ~Address{0}) {
    while (((wanted.back() - low_) >> shift_) >= last_) ++shift_;
    std::size_t part = 0;
    for (const Address va : wanted) {
      for (; part <= (va - low_) >> shift_; ++part) first_[part] = va;
    }
  }
  // May be wrong only where it says yes.
  bool may_hold(Address start, std::uint64_t size) const {
    const Address first = first_[start < low_ ? 0 : std::min((start - low_) >> shift_, last_)];
    return first - start < size || first < start;
  }

 private:
  // Most parts shall hold none of the addresses, and as few of them as will do stay in the first cache.
  static std::size_t parts(std::size_t wanted) {
    return std::bit_ceil(std::clamp<std::size_t>(16 * wanted, 1 << 10, 1 << 16));
  }
  Address low_;
  std::uint64_t last_;
  std::vector<Address> first_;  // behind the last there is none
  unsigned shift_ = 4;
};

// One symbol table to be searched for addresses of one module.
struct Pass {
  const Module* module;
  SymbolTable table;
  bool all_functions;            // it lists local functions, too
  std::vector<Address>* wanted;  // sorted; what was found is removed
  Answers* answers;
  std::vector<Found> found{};  // for each of wanted
  bool cold = false;
};

bool within_section(const Module& module, const Elf64_Sym& symbol, Address va) {
  if (symbol.st_shndx >= module.sections().size()) return false;
  const Section& section = module.sections()[symbol.st_shndx];
  return va >= section.va && va - section.va < section.size;
}

// Symbols of size 0 (assembly) are taken only if no other symbol begins between them and the address, and
// the section does not end there either. That holds only in a table of all functions, not in .dynsym.
void find_sizeless(Pass& pass) {
  const std::vector<Address>& wanted = *pass.wanted;
  std::vector<Found> nearest(wanted.size());
  pass.table.each([&](const Elf64_Sym& symbol) {
    if (!is_function(symbol)) return;
    const auto at = std::ranges::lower_bound(wanted, symbol.st_value);
    if (at != wanted.end()) nearest[static_cast<std::size_t>(at - wanted.begin())].offer(symbol);
  });
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (i != 0 && nearest[i].aliases.empty()) nearest[i] = nearest[i - 1];
    const Found& found = nearest[i];
    const bool reaches = std::ranges::all_of(found.aliases, [&](const Elf64_Sym& symbol) {
      return symbol.st_size == 0 && within_section(pass.table.module(), symbol, wanted[i]);
    });
    if (pass.found[i].aliases.empty() && reaches) pass.found[i] = found;
  }
}

void scan(Pass& pass) {
  const std::vector<Address>& wanted = *pass.wanted;
  const Filter filter(wanted);
  pass.found.resize(wanted.size());
  bool sizeless = false;
  pass.table.each([&](const Elf64_Sym& symbol) {
    if (symbol.st_size == 0)
      sizeless = sizeless || (is_function(symbol) && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC);
    if (!filter.may_hold(symbol.st_value, symbol.st_size) || !is_function(symbol)) return;
    if (symbol.st_value + symbol.st_size < symbol.st_value) return;  // of a broken table
    auto at = static_cast<std::size_t>(std::ranges::lower_bound(wanted, symbol.st_value) - wanted.begin());
    for (; at < wanted.size() && wanted[at] - symbol.st_value < symbol.st_size; ++at)
      pass.found[at].offer(symbol);
  });
  const bool missing =
      std::ranges::any_of(pass.found, [](const Found& found) { return found.aliases.empty(); });
  if (pass.all_functions && sizeless && missing) find_sizeless(pass);
}

void prefetch_names(const Pass& pass) {
  std::vector<std::uint32_t> names;
  for (const Found& found : pass.found) {
    for (const Elf64_Sym& symbol : found.aliases) names.push_back(symbol.st_name);
  }
  pass.table.prefetch_names(names);
}

void answer(Pass& pass) {
  SymbolCache& cache = pass.module->symbol_cache();
  std::vector<Address> left;
  for (std::size_t i = 0; i < pass.wanted->size(); ++i) {
    const Found& found = pass.found[i];
    const Address va = (*pass.wanted)[i];
    const bool usable = !found.aliases.empty() && pass.module->is_code(found.start);
    const Symbol*& symbol = cache.by_start[found.start];
    if (usable && symbol == nullptr) {
      if (Name name = best_name(pass.table, found); !name.text.empty()) {
        cache.symbols.push_back({demangle(name.text), found.start, name.size});
        symbol = &cache.symbols.back();
      }
    }
    if (usable && symbol != nullptr) {
      (*pass.answers)[va] = symbol;
    } else {
      left.push_back(va);
    }
  }
  *pass.wanted = std::move(left);
}

// Tables of several files are read from the disk side by side, should they not be in memory.
void run(std::vector<Pass> passes) {
  for (Pass& pass : passes) pass.cold = pass.table.prefetch();
  for (Pass& pass : passes) scan(pass);
  for (const Pass& pass : passes) {
    if (pass.cold) prefetch_names(pass);
  }
  for (Pass& pass : passes) answer(pass);
}

const Module* debug_data(const Module& module) {
  SymbolCache& cache = module.symbol_cache();
  if (cache.debug_data_tried) return cache.debug_data.get();
  cache.debug_data_tried = true;
  const Section* section = can_unpack_xz() ? module.section(".gnu_debugdata") : nullptr;
  if (section == nullptr) return nullptr;
  const auto packed = module.section_bytes(*section, max_packed);
  if (!packed) return nullptr;
  auto unpacked = unpack_xz(*packed, max_unpacked);
  if (!unpacked) return nullptr;
  cache.debug_data = Module::open(std::make_unique<BufferSource>(std::move(*unpacked)), module.path()).module;
  return cache.debug_data.get();
}

using Wanted = std::map<Module*, std::vector<Address>>;

// What of the queries is not in the answers yet, sorted.
Wanted new_addresses(std::span<const SymbolQuery> queries, Answers SymbolCache::*answers) {
  Wanted wanted;
  for (const SymbolQuery& query : queries) {
    if (query.module != nullptr && !(query.module->symbol_cache().*answers).contains(query.va))
      wanted[query.module].push_back(query.va);
  }
  for (auto& [module, addresses] : wanted) {
    std::ranges::sort(addresses);
    addresses.erase(std::ranges::unique(addresses).begin(), addresses.end());
  }
  return wanted;
}

// `tables` gives the file whose table of that type is to be searched for a module, or null.
template <class Tables>
void search(Wanted& wanted, std::uint32_t type, std::uint64_t max_size, Answers SymbolCache::*answers,
            Tables tables) {
  std::vector<Pass> passes;
  for (auto& [module, addresses] : wanted) {
    const Module* file = addresses.empty() ? nullptr : tables(*module);
    auto table = file == nullptr ? std::nullopt : SymbolTable::of(*file, type);
    if (table && table->size() <= max_size) {
      passes.push_back({module, *table, type == SHT_SYMTAB, &addresses, &(module->symbol_cache().*answers)});
    }
  }
  run(std::move(passes));
}

std::vector<const Symbol*> collect(std::span<const SymbolQuery> queries, const Wanted& unanswered,
                                   Answers SymbolCache::*answers) {
  for (const auto& [module, addresses] : unanswered) {
    for (const Address va : addresses) (module->symbol_cache().*answers)[va] = nullptr;
  }
  std::vector<const Symbol*> result;
  result.reserve(queries.size());
  for (const SymbolQuery& query : queries) {
    result.push_back(query.module == nullptr ? nullptr : (query.module->symbol_cache().*answers)[query.va]);
  }
  return result;
}

void find_in(const SymbolTable& table, std::span<const std::string_view> names,
             std::vector<std::optional<Address>>& found) {
  const auto positions = table.positions(names);
  if (positions.empty()) return;
  std::vector<bool> exported(names.size());
  table.each([&](const Elf64_Sym& symbol) {
    const auto at = positions.find(symbol.st_name);
    if (at == positions.end() || symbol.st_shndx == SHN_UNDEF) return;
    const unsigned type = ELF64_ST_TYPE(symbol.st_info);
    if (type == STT_SECTION || type == STT_FILE || type == STT_TLS) return;
    const bool global = ELF64_ST_BIND(symbol.st_info) != STB_LOCAL;
    const std::size_t i = at->second;
    if (found[i] && (exported[i] || !global)) return;
    found[i] = symbol.st_value;
    exported[i] = global;
  });
}

}  // namespace

std::vector<const Symbol*> symbolize(std::span<const SymbolQuery> queries) {
  constexpr auto answers = &SymbolCache::answers;
  constexpr std::uint64_t any_size = ~std::uint64_t{0};
  const auto own = [](const Module& module) { return &module; };
  const std::lock_guard lock(searching);
  Wanted wanted = new_addresses(queries, answers);
  search(wanted, SHT_SYMTAB, any_size, answers, own);
  search(wanted, SHT_DYNSYM, any_size, answers, own);
  search(wanted, SHT_SYMTAB, any_size, answers, debug_data);
  return collect(queries, wanted, answers);
}

std::vector<const Symbol*> symbolize_separate(std::span<const SymbolQuery> queries) {
  constexpr auto answers = &SymbolCache::separate_answers;
  const std::lock_guard lock(searching);
  Wanted wanted = new_addresses(queries, answers);
  search(wanted, SHT_SYMTAB, max_separate_symbols, answers, [](const Module& module) -> const Module* {
    // A file that has its table itself has no better one elsewhere.
    return SymbolTable::of(module, SHT_SYMTAB) ? nullptr : module.separate_debug_file();
  });
  return collect(queries, wanted, answers);
}

std::vector<std::optional<Address>> find_symbols(Module& module, std::span<const std::string_view> names) {
  SymbolCache& cache = module.symbol_cache();
  const std::lock_guard lock(searching);
  std::vector<std::string_view> unknown;
  for (const std::string_view name : names) {
    if (!name.empty() && !cache.by_name.contains(name)) unknown.push_back(name);
  }
  std::ranges::sort(unknown);
  unknown.erase(std::ranges::unique(unknown).begin(), unknown.end());
  const auto use = [&](const Module& tables, std::uint32_t type) {
    if (unknown.empty()) return;
    const auto table = SymbolTable::of(tables, type);
    if (!table) return;
    std::vector<std::optional<Address>> found(unknown.size());
    find_in(*table, unknown, found);
    std::vector<std::string_view> left;
    for (std::size_t i = 0; i < unknown.size(); ++i) {
      if (found[i]) {
        cache.by_name.emplace(unknown[i], found[i]);
      } else {
        left.push_back(unknown[i]);
      }
    }
    unknown = std::move(left);
  };
  use(module, SHT_DYNSYM);  // small, and holds most of what is asked for
  use(module, SHT_SYMTAB);
  if (!unknown.empty()) {
    if (const Module* data = debug_data(module)) use(*data, SHT_SYMTAB);
  }
  for (const std::string_view name : unknown) cache.by_name.emplace(name, std::nullopt);
  std::vector<std::optional<Address>> answers;
  answers.reserve(names.size());
  for (const std::string_view name : names) {
    const auto found = cache.by_name.find(name);
    answers.push_back(found == cache.by_name.end() ? std::nullopt : found->second);
  }
  return answers;
}

std::optional<Address> find_symbol(Module& module, std::string_view name) {
  return find_symbols(module, std::span(&name, 1)).front();
}

}  // namespace hangtrace::elf
