#include "elf/dynamic.hpp"

#include <elf.h>

#include <algorithm>
#include <optional>
#include <span>

namespace hangtrace::elf {

namespace {

constexpr std::uint64_t max_entries = 1024;
constexpr std::uint32_t max_symbols = 16 << 20;

struct Tables {
  std::optional<Address> symbols, strings, hash, gnu_hash;
  std::uint64_t strings_size = 0;
};

Tables read_dynamic(const Module& module, Address dynamic, std::uint64_t size, Address base) {
  const auto linked = [&](Address value) {
    // Some dynamic linkers leave the addresses as they are.
    return value >= base ? value - base : value;
  };
  Tables tables;
  for (std::uint64_t i = 0; i < std::min(size / sizeof(Elf64_Dyn), max_entries); ++i) {
    const auto entry = module.value_at<Elf64_Dyn>(dynamic + i * sizeof(Elf64_Dyn));
    if (!entry || entry->d_tag == DT_NULL) break;
    if (entry->d_tag == DT_SYMTAB) tables.symbols = linked(entry->d_un.d_ptr);
    if (entry->d_tag == DT_STRTAB) tables.strings = linked(entry->d_un.d_ptr);
    if (entry->d_tag == DT_HASH) tables.hash = linked(entry->d_un.d_ptr);
    if (entry->d_tag == DT_GNU_HASH) tables.gnu_hash = linked(entry->d_un.d_ptr);
    if (entry->d_tag == DT_STRSZ) tables.strings_size = entry->d_un.d_val;
  }
  return tables;
}

// The highest index that a bucket's chain reaches, plus one: exported symbols come last in the table.
std::optional<std::uint32_t> count_by_gnu_hash(const Module& module, Address table) {
  const auto word = [&](Address at) { return module.value_at<std::uint32_t>(at); };
  const auto buckets = word(table);
  const auto first = word(table + 4);
  const auto blooms = word(table + 8);
  if (!buckets || !first || !blooms || *buckets > max_symbols) return std::nullopt;
  const Address bucket_words = table + 16 + Address{8} * *blooms;
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < *buckets; ++i) {
    const auto bucket = word(bucket_words + Address{4} * i);
    if (!bucket) return std::nullopt;
    last = std::max(last, *bucket);
  }
  if (last < *first) return *first;  // nothing is exported
  const Address chain_words = bucket_words + Address{4} * *buckets;
  for (std::uint32_t index = last; index < max_symbols; ++index) {
    const auto hash = word(chain_words + Address{4} * (index - *first));
    if (!hash) return std::nullopt;
    if ((*hash & 1) != 0) return index + 1;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> file_offset(const Module& module, Address va, std::uint64_t size) {
  for (const Segment& segment : module.segments()) {
    if (va < segment.va || va - segment.va >= segment.file_size) continue;
    const std::uint64_t within = va - segment.va;
    return size <= segment.file_size - within ? std::optional(segment.offset + within) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Section> find_dynamic_symbols(const Module& module, Address dynamic, std::uint64_t size,
                                          Address base) {
  const Tables tables = read_dynamic(module, dynamic, size, base);
  if (!tables.symbols || !tables.strings) return {};
  std::optional<std::uint32_t> count;
  if (tables.hash) count = module.value_at<std::uint32_t>(*tables.hash + 4);  // chains, one for each symbol
  if (!count && tables.gnu_hash) count = count_by_gnu_hash(module, *tables.gnu_hash);
  if (!count || *count > max_symbols) return {};
  const std::uint64_t symbols_size = std::uint64_t{*count} * sizeof(Elf64_Sym);
  const auto symbols = file_offset(module, *tables.symbols, symbols_size);
  const auto strings = file_offset(module, *tables.strings, tables.strings_size);
  if (!symbols || !strings) return {};
  return {{".dynsym", SHT_DYNSYM, 1, SHF_ALLOC, *tables.symbols, *symbols, symbols_size},
          {".dynstr", SHT_STRTAB, 0, SHF_ALLOC, *tables.strings, *strings, tables.strings_size}};
}

}  // namespace hangtrace::elf
