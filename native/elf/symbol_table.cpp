#include "elf/symbol_table.hpp"

#include <array>
#include <cstring>

namespace hangtrace::elf {

namespace {

constexpr std::size_t max_name = 64 << 10;
constexpr std::uint64_t page_size = 4096;
constexpr std::size_t max_positions = 1 << 16;

// Whether it must be read from the disk, judged by its first and last bytes.
bool is_cold(const Source& source, std::uint64_t offset, std::uint64_t size) {
  std::array<std::byte, 1> byte;
  return size != 0 &&
         (source.read_cached(offset, byte) == 0 || source.read_cached(offset + size - 1, byte) == 0);
}

}  // namespace

std::optional<SymbolTable> SymbolTable::of(const Module& module, std::uint32_t type) {
  const auto& sections = module.sections();
  const auto found = std::ranges::find(sections, type, &Section::type);
  if (found == sections.end() || found->link >= sections.size()) return std::nullopt;
  return SymbolTable(module, *found, sections[found->link]);
}

bool SymbolTable::prefetch() const {
  const Source& source = module_->bytes().source();
  if (symbols_.offset >= source.size()) return false;
  const std::uint64_t size = std::min(symbols_.size, source.size() - symbols_.offset);
  if (!is_cold(source, symbols_.offset, size)) return false;
  module_->bytes().prefetch(symbols_.offset, size);
  return true;
}

void SymbolTable::prefetch_names(std::span<const std::uint32_t> positions) const {
  if (positions.empty() || strings_.offset >= module_->bytes().source().size()) return;
  std::vector<std::uint64_t> pages;
  for (const std::uint32_t at : positions) pages.push_back((strings_.offset + at) / page_size);
  std::ranges::sort(pages);
  pages.erase(std::ranges::unique(pages).begin(), pages.end());
  // Names lie close together or all over the file; pages that are not far apart are read as one.
  for (std::size_t i = 0; i < pages.size();) {
    std::size_t last = i;
    while (last + 1 < pages.size() && pages[last + 1] - pages[last] <= 4) ++last;
    const std::uint64_t offset = pages[i] * page_size;
    const std::uint64_t size = (pages[last] - pages[i] + 2) * page_size;  // a name may go on in the next one
    module_->bytes().prefetch(offset, size);
    i = last + 1;
  }
}

std::string SymbolTable::name(std::uint32_t at) const {
  std::string text;
  char piece[256];
  for (std::uint64_t position = at; position < strings_.size && text.size() < max_name;) {
    const std::size_t count = std::min<std::uint64_t>(sizeof piece, strings_.size - position);
    if (!module_->read_file(strings_.offset + position, std::as_writable_bytes(std::span(piece, count))))
      return {};
    const void* end = std::memchr(piece, 0, count);
    if (end != nullptr)
      return text.append(piece, static_cast<std::size_t>(static_cast<const char*>(end) - piece));
    text.append(piece, count);
    position += count;
  }
  return {};
}

std::unordered_map<std::uint32_t, std::size_t> SymbolTable::positions(
    std::span<const std::string_view> names) const {
  std::unordered_map<std::uint32_t, std::size_t> result;
  std::size_t longest = 0;
  for (const std::string_view name : names) longest = std::max(longest, name.size() + 1);
  std::vector<char> window(std::min<std::uint64_t>(strings_.size, (1 << 20) + longest));
  for (std::uint64_t begin = 0; begin < strings_.size && result.size() < max_positions;) {
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
        result.emplace(static_cast<std::uint32_t>(begin + static_cast<std::uint64_t>(at - window.data())), i);
        from = at + 1;
      }
    }
    if (count < window.size() || begin + count >= strings_.size) break;
    begin += count - longest;  // a name may lie across the end of the window
  }
  return result;
}

}  // namespace hangtrace::elf
