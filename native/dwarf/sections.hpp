#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "elf/module.hpp"

namespace hangtrace::dwarf {

using memory::Address;
using Bytes = std::vector<std::byte>;

/// One .debug_ section. A plain one is read piece by piece, a compressed one is unpacked at the first use.
class Section {
 public:
  Section() = default;  // an absent one: nothing can be read
  Section(const elf::Module& file, const elf::Section& section);

  std::uint64_t size() const { return size_; }
  /// nullopt if any byte lies outside or cannot be read. At most 256 MiB.
  std::optional<Bytes> read(std::uint64_t offset, std::uint64_t size) const;
  /// Text up to a NUL; empty if there is none.
  std::string text(std::uint64_t offset) const;
  /// A number of `width` bytes (1 to 8); nullopt outside.
  std::optional<std::uint64_t> number(std::uint64_t offset, unsigned width) const;
  /// Why nothing can be read although it is there; empty: it can, or it is absent.
  const std::string& problem() const { return problem_; }

 private:
  bool copy(std::uint64_t offset, std::span<std::byte> into) const;
  const elf::Module* file_ = nullptr;
  std::uint64_t offset_ = 0;
  std::uint64_t size_ = 0;
  std::optional<Bytes> unpacked_;
  std::string problem_;
};

/// The sections of one file, each opened when it is first asked for.
class Sections {
 public:
  explicit Sections(const elf::Module& file) : file_(file) {}
  const Section& operator[](std::string_view name);

 private:
  const elf::Module& file_;
  std::map<std::string, Section, std::less<>> sections_;
};

}  // namespace hangtrace::dwarf
