#include "elf/module.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "elf/cursor.hpp"
#include "elf/dynamic.hpp"
#include "elf/zlib.hpp"

namespace hangtrace::elf {

namespace {

constexpr std::size_t max_program_headers = 4096;
constexpr std::size_t max_sections = 65536;
constexpr std::uint64_t max_section_names = 4 << 20;
constexpr std::size_t max_section_name = 256;
constexpr std::uint64_t max_notes = 64 << 10;

template <class T>
bool read_table(const CachedReader& bytes, std::uint64_t offset, std::vector<T>& into) {
  return bytes.read(offset, std::as_writable_bytes(std::span(into)));
}

std::size_t round_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

Module::Module(std::unique_ptr<Source> source, std::string path)
    : bytes_(std::move(source)), path_(std::move(path)), symbols_(make_symbol_cache()) {}

Module::~Module() = default;

OpenedModule Module::open(std::unique_ptr<Source> source, std::string path) {
  if (!source) return {nullptr, "not a regular file"};
  std::shared_ptr<Module> module(new Module(std::move(source), std::move(path)));
  std::string problem = module->parse();
  if (!problem.empty()) return {nullptr, std::move(problem)};
  return {std::move(module), {}};
}

OpenedModule Module::open_image(std::unique_ptr<Source> source, std::string path, Address start) {
  OpenedModule opened = open(std::move(source), std::move(path));
  if (!opened.module || !opened.module->dynamic_) return opened;
  Module& module = *opened.module;
  const auto first = std::ranges::find(module.segments_, std::uint64_t{0}, &Segment::offset);
  // Section headers are not mapped, as a rule.
  if (module.sections_.empty() && first != module.segments_.end()) {
    const auto& [dynamic, size] = *module.dynamic_;
    module.sections_ = find_dynamic_symbols(module, dynamic, size, start - first->va);
  }
  return opened;
}

std::string Module::parse() {
  Elf64_Ehdr header;
  if (!bytes_.read(0, std::as_writable_bytes(std::span(&header, 1))) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return "not an ELF file";
  }
  if (header.e_ident[EI_CLASS] == ELFCLASS32) return "32-bit ELF file";
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return "ELF class unknown";
  if (header.e_ident[EI_DATA] != ELFDATA2LSB) return "big-endian ELF file";
  machine_ = header.e_machine == EM_X86_64    ? Machine::x86_64
             : header.e_machine == EM_AARCH64 ? Machine::aarch64
                                              : Machine::other;
  if (header.e_phnum != 0) {
    if (header.e_phentsize != sizeof(Elf64_Phdr)) return "program headers of an unknown size";
    if (std::string problem = parse_segments(header.e_phoff, header.e_phnum); !problem.empty())
      return problem;
  }
  if (header.e_shoff != 0 && header.e_shentsize == sizeof(Elf64_Shdr)) {
    std::size_t count = header.e_shnum;
    std::size_t names = header.e_shstrndx;
    // Since gABI 4.1 counts that do not fit are kept in section 0.
    Elf64_Shdr first{};
    if ((count == 0 || names == SHN_XINDEX) &&
        bytes_.read(header.e_shoff, std::as_writable_bytes(std::span(&first, 1)))) {
      if (count == 0) count = first.sh_size;
      if (names == SHN_XINDEX) names = first.sh_link;
    }
    if (count <= max_sections) parse_sections(header.e_shoff, count, names);
  }
  return {};
}

std::string Module::parse_segments(std::uint64_t offset, std::size_t count) {
  if (count > max_program_headers) return "too many program headers";
  std::vector<Elf64_Phdr> headers(count);
  if (!read_table(bytes_, offset, headers)) return "program headers outside the file";
  for (const Elf64_Phdr& header : headers) {
    if (header.p_vaddr + std::max(header.p_memsz, header.p_filesz) < header.p_vaddr) continue;
    if (header.p_offset + header.p_filesz < header.p_offset) continue;
    if (header.p_type == PT_LOAD) {
      segments_.push_back({header.p_vaddr, header.p_offset, header.p_filesz, header.p_memsz,
                           (header.p_flags & PF_X) != 0, (header.p_flags & PF_W) != 0});
    } else if (header.p_type == PT_DYNAMIC) {
      dynamic_ = {header.p_vaddr, header.p_filesz};
    } else if (header.p_type == PT_GNU_EH_FRAME) {
      eh_frame_header_ = {header.p_vaddr, header.p_filesz};
    } else if (header.p_type == PT_NOTE && build_id_.empty()) {
      parse_notes(header.p_offset, header.p_filesz);
    }
  }
  return {};
}

void Module::parse_sections(std::uint64_t offset, std::size_t count, std::size_t names) {
  std::vector<Elf64_Shdr> headers(count);
  if (!read_table(bytes_, offset, headers)) return;
  std::vector<std::byte> text;
  if (names < count && headers[names].sh_size <= max_section_names) {
    text.resize(headers[names].sh_size);
    if (!bytes_.read(headers[names].sh_offset, text)) text.clear();
  }
  sections_.reserve(count);
  for (const Elf64_Shdr& header : headers) {
    Cursor cursor(text);
    cursor.seek(header.sh_name);
    sections_.push_back({std::string(cursor.cstring().substr(0, max_section_name)), header.sh_type,
                         header.sh_link, header.sh_flags, header.sh_addr, header.sh_offset, header.sh_size});
    if (header.sh_type == SHT_NOTE && build_id_.empty()) parse_notes(header.sh_offset, header.sh_size);
  }
}

void Module::parse_notes(std::uint64_t offset, std::uint64_t size) {
  std::vector<std::byte> notes(std::min(size, max_notes));
  if (!bytes_.read(offset, notes)) return;
  for (Cursor cursor(notes); cursor.left() >= sizeof(Elf64_Nhdr);) {
    const auto name_size = cursor.value<std::uint32_t>();
    const auto data_size = cursor.value<std::uint32_t>();
    const auto type = cursor.value<std::uint32_t>();
    const auto name = cursor.take(round_up(name_size, 4));
    const auto data = cursor.take(data_size);
    if (!cursor.ok()) return;
    if (type == NT_GNU_BUILD_ID && name_size == 4 && std::memcmp(name.data(), "GNU", 4) == 0 &&
        data_size <= 64) {
      build_id_.assign(data.begin(), data.end());
      return;
    }
    cursor.seek(std::min(round_up(cursor.position(), 4), notes.size()));
  }
}

const Section* Module::section(std::string_view name) const {
  const auto found = std::ranges::find(sections_, name, &Section::name);
  return found == sections_.end() ? nullptr : &*found;
}

std::string Module::build_id_hex() const {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : build_id_) {
    text += digits[std::to_integer<unsigned>(byte) >> 4];
    text += digits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

bool Module::read_va(Address va, std::span<std::byte> into) const {
  for (const Segment& segment : segments_) {
    if (va < segment.va || va - segment.va >= segment.file_size) continue;
    const std::uint64_t within = va - segment.va;
    return into.size() <= segment.file_size - within && bytes_.read(segment.offset + within, into);
  }
  return false;
}

bool Module::is_code(Address va) const {
  return std::ranges::any_of(segments_, [va](const Segment& segment) {
    return segment.executable && va >= segment.va && va - segment.va < segment.file_size;
  });
}

std::optional<std::vector<std::byte>> Module::section_bytes(const Section& section, std::uint64_t max) const {
  if (section.type == SHT_NOBITS || section.size > max) return std::nullopt;
  if (section.offset > bytes_.source().size() || section.size > bytes_.source().size() - section.offset) {
    return std::nullopt;
  }
  std::vector<std::byte> bytes(section.size);
  if (!bytes_.read_through(section.offset, bytes)) return std::nullopt;
  if ((section.flags & SHF_COMPRESSED) == 0) return bytes;
  Cursor cursor(bytes);  // Elf64_Chdr
  const auto type = cursor.value<std::uint32_t>();
  cursor.value<std::uint32_t>();
  const auto size = cursor.value<std::uint64_t>();
  cursor.value<std::uint64_t>();
  if (!cursor.ok() || type != ELFCOMPRESS_ZLIB || size > max) return std::nullopt;
  return unpack_zlib(cursor.take(cursor.left()), size);
}

}  // namespace hangtrace::elf
