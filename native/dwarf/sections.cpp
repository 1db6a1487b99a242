#include "dwarf/sections.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "elf/zlib.hpp"

namespace hangtrace::dwarf {

namespace {

constexpr std::uint64_t max_read = 256 << 20;
constexpr std::size_t max_text = 64 << 10;

}  // namespace

Section::Section(const elf::Module& file, const elf::Section& section) {
  const std::uint64_t file_size = file.bytes().source().size();
  if (section.type == SHT_NOBITS || section.offset > file_size || section.size > file_size - section.offset)
    return;
  file_ = &file;
  offset_ = section.offset;
  size_ = section.size;
  if ((section.flags & SHF_COMPRESSED) == 0) return;
  size_ = 0;
  unpacked_ = file.section_bytes(section, max_read);
  if (unpacked_) {
    size_ = unpacked_->size();
  } else {
    problem_ = elf::can_unpack_zlib()
                   ? section.name + " is compressed in a way that is not known, or too large"
                   : section.name + " is compressed, and this build has no zlib";
  }
}

bool Section::copy(std::uint64_t offset, std::span<std::byte> into) const {
  if (file_ == nullptr || offset > size_ || into.size() > size_ - offset) return false;
  if (!unpacked_) return file_->read_file(offset_ + offset, into);
  if (!into.empty()) std::memcpy(into.data(), unpacked_->data() + offset, into.size());
  return true;
}

std::optional<Bytes> Section::read(std::uint64_t offset, std::uint64_t size) const {
  if (size > max_read || offset > size_ || size > size_ - offset) return std::nullopt;
  Bytes bytes(size);
  if (!copy(offset, bytes)) return std::nullopt;
  return bytes;
}

std::string Section::text(std::uint64_t offset) const {
  std::string text;
  std::array<char, 128> piece;
  while (offset < size_ && text.size() < max_text) {
    const std::size_t count = std::min<std::uint64_t>(piece.size(), size_ - offset);
    if (!copy(offset, std::as_writable_bytes(std::span(piece).first(count)))) return {};
    const void* end = std::memchr(piece.data(), 0, count);
    if (end != nullptr)
      return text.append(piece.data(),
                         static_cast<std::size_t>(static_cast<const char*>(end) - piece.data()));
    text.append(piece.data(), count);
    offset += count;
  }
  return {};
}

std::optional<std::uint64_t> Section::number(std::uint64_t offset, unsigned width) const {
  std::array<std::byte, 8> bytes{};
  if (width > bytes.size() || !copy(offset, std::span(bytes).first(width))) return std::nullopt;
  std::uint64_t value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

const Section& Sections::operator[](std::string_view name) {
  const auto known = sections_.find(name);
  if (known != sections_.end()) return known->second;
  const elf::Section* section = file_.section(name);
  return sections_.emplace(std::string(name), section == nullptr ? Section() : Section(file_, *section))
      .first->second;
}

}  // namespace hangtrace::dwarf
