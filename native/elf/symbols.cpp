#include "elf/symbols.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <unordered_map>

#include "elf/demangle.hpp"
#include "elf/xz.hpp"

namespace hangtrace::elf {

namespace {

constexpr std::size_t symbols_per_read = 4096;
constexpr std::size_t max_name = 64 << 10;
constexpr std::uint64_t max_packed = 64 << 20;
constexpr std::size_t max_unpacked = 256 << 20;

}  // namespace

struct SymbolCache {
  std::unordered_map<Address, const Symbol*> answers;  // by queried va
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

// One symbol table with its strings.
class Table {
 public:
  static std::optional<Table> of(const Module& module, std::uint32_t type) {
    const auto& sections = module.sections();
    const auto found = std::ranges::find(sections, type, &Section::type);
    if (found == sections.end() || found->link >= sections.size()) return std::nullopt;
    return Table(module, *found, sections[found->link]);
  }

  // Calls visit(const Elf64_Sym&) for each symbol; stops at the first part that cannot be read.
  template <class Visit>
  void each(Visit visit) const {
    const std::uint64_t size = module_->bytes().source().size();
    if (symbols_.offset > size) return;
    std::uint64_t left = std::min(symbols_.size, size - symbols_.offset) / sizeof(Elf64_Sym);
    std::vector<Elf64_Sym> part(std::min<std::uint64_t>(left, symbols_per_read));
    for (std::uint64_t offset = symbols_.offset; left != 0;) {
      const std::size_t count = std::min<std::uint64_t>(left, part.size());
      const auto bytes = std::as_writable_bytes(std::span(part).first(count));
      if (!module_->bytes().read_through(offset, bytes)) return;
      for (const Elf64_Sym& symbol : std::span(part).first(count)) visit(symbol);
      offset += bytes.size();
      left -= count;
    }
  }

  // Without a version suffix; empty if it does not end within the table.
  std::string name(std::uint32_t at) const {
    std::string text;
    char piece[256];
    for (std::uint64_t position = at; position < strings_.size && text.size() < max_name;) {
      const std::size_t count = std::min<std::uint64_t>(sizeof piece, strings_.size - position);
      if (!module_->read_file(strings_.offset + position, std::as_writable_bytes(std::span(piece, count))))
        return {};
      const void* end = std::memchr(piece, 0, count);
      if (end != nullptr) {
        text.append(piece, static_cast<std::size_t>(static_cast<const char*>(end) - piece));
        const std::size_t version = text.find('@', 1);
        return version == std::string::npos ? text : text.substr(0, version);
      }
      text.append(piece, count);
      position += count;
    }
    return {};
  }

  // Positions in the strings at which one of the names (with its NUL) begins. Names may be the tail of
  // others.
  std::unordered_map<std::uint32_t, std::size_t> positions(std::span<const std::string_view> names) const {
    std::unordered_map<std::uint32_t, std::size_t> result;
    std::size_t longest = 0;
    for (const std::string_view name : names) longest = std::max(longest, name.size() + 1);
    std::vector<char> window(std::min<std::uint64_t>(strings_.size, (1 << 20) + longest));
    for (std::uint64_t begin = 0; begin < strings_.size;) {
      const std::size_t count = std::min<std::uint64_t>(window.size(), strings_.size - begin);
      if (!module_->bytes().read_through(strings_.offset + begin,
                                         std::as_writable_bytes(std::span(window).first(count))))
        break;
      for (std::size_t i = 0; i < names.size(); ++i) {
        const std::string needle = std::string(names[i]) + '\0';
        const char* from = window.data();
        const char* const end = window.data() + count;
        while (const void* hit =
                   ::memmem(from, static_cast<std::size_t>(end - from), needle.data(), needle.size())) {
          const auto* at = static_cast<const char*>(hit);
          result.emplace(static_cast<std::uint32_t>(begin + static_cast<std::uint64_t>(at - window.data())),
                         i);
          from = at + 1;
        }
      }
      if (count < window.size() || begin + count >= strings_.size) break;
      begin += count - longest;  // a name may lie across the end of the window
    }
    return result;
  }

 private:
  Table(const Module& module, Section symbols, Section strings)
      : module_(&module), symbols_(std::move(symbols)), strings_(std::move(strings)) {}
  const Module* module_;
  Section symbols_;
  Section strings_;
};

bool is_function(const Elf64_Sym& symbol) {
  const unsigned type = ELF64_ST_TYPE(symbol.st_info);
  return symbol.st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_NOTYPE);
}

struct Candidate {
  bool found = false;
  Address start = 0;
  std::uint64_t size = 0;
  std::uint32_t name = 0;
  bool local = false;
};

std::size_t leading_underscores(const std::string& name) {
  return name.starts_with("_Z") ? 0 : std::min(name.find_first_not_of('_'), name.size());
}

// Of several names of one function the one people know: exported, `read` before `__read`, then a fixed order.
bool preferred(const Table& table, const Candidate& candidate, const Candidate& present) {
  if (candidate.local != present.local) return !candidate.local;
  const std::string name = table.name(candidate.name);
  const std::string other = table.name(present.name);
  const auto key = [](const std::string& text) {
    return std::tuple(text.empty(), leading_underscores(text), text.size(), text);
  };
  return key(name) < key(other);
}

bool better(const Table& table, const Candidate& candidate, const Candidate& present) {
  if (!present.found) return true;
  if (candidate.start != present.start) return candidate.start > present.start;
  return preferred(table, candidate, present);
}

// A coarse map of the addresses asked for, so that nearly all symbols are refused with one bit test.
class Filter {
 public:
  explicit Filter(const std::vector<Address>& wanted) : low_(wanted.front()), high_(wanted.back()) {
    while (((high_ - low_) >> shift_) >= bits) ++shift_;
    words_.resize(bits / 64);
    for (const Address va : wanted) set((va - low_) >> shift_);
  }
  bool may_hold(Address start, std::uint64_t size) const {
    if (start > high_ || start + size <= low_ || start + size < start) return false;
    const std::uint64_t first = start <= low_ ? 0 : (start - low_) >> shift_;
    const std::uint64_t last = (std::min(start + size - 1, high_) - low_) >> shift_;
    if (last - first > 8) return true;
    for (std::uint64_t bit = first; bit <= last; ++bit) {
      if ((words_[bit / 64] >> (bit % 64) & 1) != 0) return true;
    }
    return false;
  }

 private:
  static constexpr std::uint64_t bits = 1 << 16;
  void set(std::uint64_t bit) { words_[bit / 64] |= std::uint64_t{1} << (bit % 64); }
  Address low_;
  Address high_;
  unsigned shift_ = 4;
  std::vector<std::uint64_t> words_;
};

// Symbols of size 0 (assembly) are taken only if no other symbol begins between them and the address. That
// holds only in a table of all functions, not in .dynsym.
void find_sizeless(const Table& table, const std::vector<Address>& wanted, std::vector<Candidate>& found) {
  std::vector<Candidate> nearest(wanted.size());
  table.each([&](const Elf64_Sym& symbol) {
    if (!is_function(symbol)) return;
    const auto at = std::ranges::lower_bound(wanted, symbol.st_value);
    if (at == wanted.end()) return;
    Candidate& present = nearest[static_cast<std::size_t>(at - wanted.begin())];
    const Candidate candidate{true, symbol.st_value, symbol.st_size, symbol.st_name,
                              ELF64_ST_BIND(symbol.st_info) == STB_LOCAL};
    if (better(table, candidate, present)) present = candidate;
  });
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (i != 0 && nearest[i - 1].found && (!nearest[i].found || nearest[i].start < nearest[i - 1].start)) {
      nearest[i] = nearest[i - 1];
    }
    if (!found[i].found && nearest[i].found && nearest[i].size == 0) found[i] = nearest[i];
  }
}

// Answers what it can of the sorted `wanted` and removes it from there.
void search(const Module& module, const Table& table, bool all_functions, SymbolCache& cache,
            std::vector<Address>& wanted) {
  const Filter filter(wanted);
  std::vector<Candidate> found(wanted.size());
  bool sizeless = false;
  table.each([&](const Elf64_Sym& symbol) {
    if (symbol.st_size == 0)
      sizeless = sizeless || (is_function(symbol) && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC);
    if (!filter.may_hold(symbol.st_value, symbol.st_size) || !is_function(symbol)) return;
    const Candidate candidate{true, symbol.st_value, symbol.st_size, symbol.st_name,
                              ELF64_ST_BIND(symbol.st_info) == STB_LOCAL};
    auto at = static_cast<std::size_t>(std::ranges::lower_bound(wanted, symbol.st_value) - wanted.begin());
    for (; at < wanted.size() && wanted[at] - symbol.st_value < symbol.st_size; ++at) {
      if (better(table, candidate, found[at])) found[at] = candidate;
    }
  });
  const bool missing = !std::ranges::all_of(found, &Candidate::found);
  if (all_functions && sizeless && missing) find_sizeless(table, wanted, found);
  std::vector<Address> left;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Candidate& candidate = found[i];
    std::string name =
        candidate.found && module.is_code(candidate.start) ? table.name(candidate.name) : std::string();
    if (name.empty()) {
      left.push_back(wanted[i]);
      continue;
    }
    const Symbol*& symbol = cache.by_start[candidate.start];
    if (symbol == nullptr) {
      cache.symbols.push_back({demangle(name), candidate.start, candidate.size});
      symbol = &cache.symbols.back();
    }
    cache.answers[wanted[i]] = symbol;
  }
  wanted = std::move(left);
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

void symbolize_module(const Module& module, std::vector<Address>& wanted) {
  std::ranges::sort(wanted);
  wanted.erase(std::ranges::unique(wanted).begin(), wanted.end());
  SymbolCache& cache = module.symbol_cache();
  const auto use = [&](const Module& tables, std::uint32_t type) {
    if (wanted.empty()) return;
    if (const auto table = Table::of(tables, type)) search(module, *table, type == SHT_SYMTAB, cache, wanted);
  };
  use(module, SHT_SYMTAB);
  use(module, SHT_DYNSYM);
  if (!wanted.empty()) {
    if (const Module* data = debug_data(module)) use(*data, SHT_SYMTAB);
  }
  for (const Address va : wanted) cache.answers[va] = nullptr;
}

void find_in(const Table& table, std::span<const std::string_view> names,
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
  std::map<Module*, std::vector<Address>> wanted;
  for (const SymbolQuery& query : queries) {
    if (query.module != nullptr && !query.module->symbol_cache().answers.contains(query.va)) {
      wanted[query.module].push_back(query.va);
    }
  }
  for (auto& [module, addresses] : wanted) symbolize_module(*module, addresses);
  std::vector<const Symbol*> answers;
  answers.reserve(queries.size());
  for (const SymbolQuery& query : queries) {
    answers.push_back(query.module == nullptr ? nullptr : query.module->symbol_cache().answers[query.va]);
  }
  return answers;
}

std::vector<std::optional<Address>> find_symbols(Module& module, std::span<const std::string_view> names) {
  SymbolCache& cache = module.symbol_cache();
  std::vector<std::string_view> unknown;
  for (const std::string_view name : names) {
    if (!name.empty() && !cache.by_name.contains(name)) unknown.push_back(name);
  }
  std::ranges::sort(unknown);
  unknown.erase(std::ranges::unique(unknown).begin(), unknown.end());
  const auto use = [&](const Module& tables, std::uint32_t type) {
    if (unknown.empty()) return;
    const auto table = Table::of(tables, type);
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
