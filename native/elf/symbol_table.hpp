#pragma once

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "elf/module.hpp"

namespace hangtrace::elf {

/// One symbol table with its strings. The module must outlive it.
class SymbolTable {
 public:
  /// `type`: SHT_SYMTAB or SHT_DYNSYM.
  static std::optional<SymbolTable> of(const Module& module, std::uint32_t type);

  const Module& module() const { return *module_; }
  std::uint64_t size() const { return symbols_.size; }  // bytes, without strings

  /// Calls visit(const Elf64_Sym&) for each symbol; stops at the first part that cannot be read.
  template <class Visit>
  void each(Visit visit) const {
    const std::uint64_t size = module_->bytes().source().size();
    if (symbols_.offset > size) return;
    std::uint64_t left = std::min(symbols_.size, size - symbols_.offset) / sizeof(Elf64_Sym);
    const auto buffer =
        std::make_unique_for_overwrite<Elf64_Sym[]>(std::min<std::uint64_t>(left, symbols_per_read));
    for (std::uint64_t offset = symbols_.offset; left != 0;) {
      const std::size_t count = std::min<std::uint64_t>(left, symbols_per_read);
      const std::span part(buffer.get(), count);
      const auto bytes = std::as_writable_bytes(part);
      if (!module_->bytes().read_through(offset, bytes)) return;
      for (const Elf64_Sym& symbol : part) visit(symbol);
      offset += bytes.size();
      left -= count;
    }
  }

  /// Starts reading the symbols from the disk, if they are not in memory. Whether that was so.
  bool prefetch() const;
  /// Starts reading the names at these positions from the disk.
  void prefetch_names(std::span<const std::uint32_t> positions) const;

  /// As it stands there, with a version ("name@@VERSION") if it has one; empty if it does not end within the
  /// table.
  std::string name(std::uint32_t at) const;

  /// Positions in the strings at which one of the names (with its NUL) begins -> which one. Names may be the
  /// tail of others.
  std::unordered_map<std::uint32_t, std::size_t> positions(std::span<const std::string_view> names) const;

 private:
  static constexpr std::size_t symbols_per_read = 4096;  // 96 KiB: stays in the cache of a CPU
  SymbolTable(const Module& module, Section symbols, Section strings)
      : module_(&module), symbols_(std::move(symbols)), strings_(std::move(strings)) {}
  const Module* module_;
  Section symbols_;
  Section strings_;
};

}  // namespace hangtrace::elf
