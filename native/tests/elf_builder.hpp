#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace hangtrace::tests {

using Bytes = std::vector<std::byte>;

inline void append(Bytes& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

template <class T>
void append_value(Bytes& bytes, const T& value) {
  append(bytes, std::as_bytes(std::span<const T, 1>(&value, 1)));
}

inline Bytes bytes_of(std::initializer_list<unsigned> values) {
  Bytes result;
  for (const unsigned value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

/// Makes small ELF64 files: one executable load segment over the whole file, at va = file offset + `base_va`.
class ElfBuilder {
 public:
  static constexpr std::uint64_t base_va = 0x10000;

  struct Symbol {
    std::string name;
    std::uint64_t va;
    std::uint64_t size;
    unsigned type = STT_FUNC;
    unsigned binding = STB_GLOBAL;
  };

  /// Returns the va at which the section's bytes will lie.
  std::uint64_t add_section(const std::string& name, std::uint32_t type, const Bytes& bytes,
                            std::uint32_t link = 0, std::uint64_t flags = SHF_ALLOC) {
    while (body_.size() % 16 != 0) body_.push_back(std::byte{0});
    const std::uint64_t offset = headers_size + body_.size();
    sections_.push_back({name, type, offset, bytes.size(), link, flags});
    append(body_, bytes);
    return base_va + offset;
  }

  void add_symbols(const std::vector<Symbol>& symbols, std::uint32_t type = SHT_SYMTAB) {
    Bytes strings(1);
    Bytes table(sizeof(Elf64_Sym));
    for (const Symbol& symbol : symbols) {
      Elf64_Sym entry{};
      entry.st_name = static_cast<std::uint32_t>(strings.size());
      entry.st_info = static_cast<unsigned char>(ELF64_ST_INFO(symbol.binding, symbol.type));
      entry.st_shndx = 1;
      entry.st_value = symbol.va;
      entry.st_size = symbol.size;
      append_value(table, entry);
      append(strings, std::as_bytes(std::span(symbol.name.c_str(), symbol.name.size() + 1)));
    }
    const bool dynamic = type == SHT_DYNSYM;
    add_section(dynamic ? ".dynstr" : ".strtab", SHT_STRTAB, strings);
    add_section(dynamic ? ".dynsym" : ".symtab", type, table, static_cast<std::uint32_t>(sections_.size()));
  }

  void set_eh_frame_header(std::uint64_t va, std::uint64_t size) {
    header_va_ = va;
    header_size_ = size;
  }

  Bytes build() const {
    Bytes names(1);
    std::vector<Elf64_Shdr> headers(1);
    for (const Section& section : sections_) {
      Elf64_Shdr header{};
      header.sh_name = static_cast<std::uint32_t>(names.size());
      header.sh_type = section.type;
      header.sh_flags = section.flags;
      header.sh_addr = base_va + section.offset;
      header.sh_offset = section.offset;
      header.sh_size = section.size;
      header.sh_link = section.link;
      headers.push_back(header);
      append(names, std::as_bytes(std::span(section.name.c_str(), section.name.size() + 1)));
    }
    Bytes tail = body_;
    Elf64_Shdr header{};
    header.sh_type = SHT_STRTAB;
    header.sh_offset = headers_size + tail.size();
    header.sh_size = names.size();
    headers.push_back(header);
    append(tail, names);
    while (tail.size() % 8 != 0) tail.push_back(std::byte{0});

    Elf64_Ehdr elf{};
    std::memcpy(elf.e_ident, ELFMAG, SELFMAG);
    elf.e_ident[EI_CLASS] = ELFCLASS64;
    elf.e_ident[EI_DATA] = ELFDATA2LSB;
    elf.e_type = ET_DYN;
    elf.e_machine = EM_X86_64;
    elf.e_phoff = sizeof elf;
    elf.e_phentsize = sizeof(Elf64_Phdr);
    elf.e_phnum = 2;
    elf.e_shoff = headers_size + tail.size();
    elf.e_shentsize = sizeof(Elf64_Shdr);
    elf.e_shnum = static_cast<std::uint16_t>(headers.size());
    elf.e_shstrndx = static_cast<std::uint16_t>(headers.size() - 1);
    Elf64_Phdr load{};
    load.p_type = PT_LOAD;
    load.p_flags = PF_R | PF_X;
    load.p_vaddr = base_va;
    load.p_filesz = load.p_memsz = headers_size + tail.size() + headers.size() * sizeof(Elf64_Shdr);
    Elf64_Phdr frame{};
    frame.p_type = header_size_ == 0 ? PT_NULL : PT_GNU_EH_FRAME;
    frame.p_vaddr = header_va_;
    frame.p_filesz = frame.p_memsz = header_size_;

    Bytes file;
    append_value(file, elf);
    append_value(file, load);
    append_value(file, frame);
    append(file, tail);
    for (const Elf64_Shdr& section : headers) append_value(file, section);
    return file;
  }

 private:
  static constexpr std::uint64_t headers_size = sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Phdr);
  struct Section {
    std::string name;
    std::uint32_t type;
    std::uint64_t offset;
    std::uint64_t size;
    std::uint32_t link;
    std::uint64_t flags;
  };
  Bytes body_;
  std::vector<Section> sections_;
  std::uint64_t header_va_ = 0;
  std::uint64_t header_size_ = 0;
};

/// Unwind tables: one CIE (code alignment 1, data alignment -8, RA column 16, absolute pointers) and FDEs.
class EhFrameBuilder {
 public:
  explicit EhFrameBuilder(const Bytes& cie_instructions, const std::string& augmentation = "") {
    Bytes cie;
    append_value(cie, std::uint32_t{0});
    append_value(cie, std::uint8_t{1});
    append(cie, std::as_bytes(std::span(augmentation.c_str(), augmentation.size() + 1)));
    append(cie, bytes_of({1, 0x78, 16}));
    if (augmentation.starts_with('z')) append(cie, bytes_of({0}));
    append(cie, cie_instructions);
    add(cie);
  }

  void add_fde(std::uint64_t begin, std::uint64_t size, const Bytes& instructions, bool augmented = false) {
    Bytes fde;
    append_value(fde, static_cast<std::uint32_t>(bytes_.size() + 4));
    append_value(fde, begin);
    append_value(fde, size);
    if (augmented) append(fde, bytes_of({0}));
    append(fde, instructions);
    add(fde);
  }

  Bytes build() const {
    Bytes bytes = bytes_;
    append_value(bytes, std::uint32_t{0});
    return bytes;
  }

 private:
  void add(Bytes entry) {
    while (entry.size() % 4 != 0) entry.push_back(std::byte{0});
    append_value(bytes_, static_cast<std::uint32_t>(entry.size()));
    append(bytes_, entry);
  }
  Bytes bytes_;
};

}  // namespace hangtrace::tests
