#pragma once

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "elf/process_modules.hpp"
#include "memory/buffer_reader.hpp"
#include "proc/maps.hpp"
#include "tests/elf_builder.hpp"
#include "tests/temporary_directory.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::tests {

/// A process at one moment, as tools/record_snapshots.py describes it. What is known of its files is laid out
/// in sparse ELF files below a /proc of its own.
class Snapshot {
 public:
  explicit Snapshot(const std::string& file) {
    std::ifstream lines(file);
    std::map<std::string, File> files;
    std::vector<std::pair<proc::Mapping, std::string>> ranges;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      words >> std::hex;
      std::string kind;
      std::string name;
      memory::Address first = 0;
      memory::Address second = 0;
      words >> kind;
      if (kind == "machine") {
        words >> name;
        layout_ = name == "aarch64" ? &unwind::aarch64 : &unwind::x86_64;
        registers_ = unwind::Registers(*layout_);
      } else if (kind == "register") {
        words >> first >> second;
        registers_.set(static_cast<unsigned>(first), second);
      } else if (kind == "module") {
        words >> name >> first;
        files[name].bias = first;
      } else if (kind == "mapping") {
        std::string permissions;
        proc::Mapping mapping;
        words >> mapping.start >> mapping.end >> permissions >> name;
        mapping.readable = permissions[0] == 'r';
        mapping.writable = permissions[1] == 'w';
        mapping.executable = permissions[2] == 'x';
        ranges.emplace_back(mapping, name);
      } else if (kind == "bytes") {
        std::string hex;
        words >> name >> first >> hex;
        files[name].pieces.emplace_back(first, unhex(hex));
      } else if (kind == "function") {
        words >> name >> first >> second;
        files[name].functions[first] = second;
      } else if (kind == "memory") {
        std::string hex;
        words >> first >> hex;
        reader_.add(first, unhex(hex));
      } else if (kind == "zeros") {
        words >> first >> second;
        reader_.add(first, Bytes(second));
      } else if (kind == "frame") {
        words >> first;
        frames_.push_back(first);
      }
    }
    for (auto& [name, contents] : files) {
      for (auto& [mapping, owner] : ranges) {
        if (owner == name) write(name, contents, mapping);
      }
    }
    for (auto& [mapping, owner] : ranges) mappings_.push_back(mapping);
    std::ranges::sort(mappings_, {}, &proc::Mapping::start);
  }

  const std::vector<memory::Address>& frames() const { return frames_; }
  const unwind::Registers& registers() const { return registers_; }
  unwind::Registers pc_sp() const {
    return unwind::Registers::from_pc_sp(*registers_.get(layout_->program_counter),
                                         *registers_.get(layout_->stack_pointer), *layout_);
  }
  const std::vector<proc::Mapping>& mappings() const { return mappings_; }
  const memory::BufferReader& reader() const { return reader_; }
  std::string proc_root() const { return directory_.path() + "/proc"; }

  /// The recorded stack, from the stack pointer on.
  memory::Address stack_begin() const { return *registers_.get(layout_->stack_pointer); }
  Bytes stack() const {
    Bytes bytes;
    while (const auto byte = reader_.read_value<std::byte>(stack_begin() + bytes.size()))
      bytes.push_back(*byte);
    return bytes;
  }

  /// `memory`: in place of what was recorded. What is returned holds until the next call.
  unwind::Stack unwind(const unwind::Registers& start, unwind::Options options = {},
                       const memory::Reader* memory = nullptr) {
    process_ = std::make_unique<elf::ProcessModules>(modules_, proc_root(), 1, mappings_,
                                                     memory == nullptr ? reader_ : *memory);
    return unwind::Unwinder(*process_, cache_, options).unwind(start, {});
  }

 private:
  struct File {
    memory::Address bias = 0;
    std::vector<std::pair<memory::Address, Bytes>> pieces;
    std::map<memory::Address, memory::Address> functions;  // begin to FDE
  };

  static Bytes unhex(const std::string& text) {
    Bytes bytes;
    for (std::size_t at = 0; at + 2 <= text.size(); at += 2)
      bytes.push_back(static_cast<std::byte>(std::stoul(text.substr(at, 2), nullptr, 16)));
    return bytes;
  }

  // One segment from the file's lowest known byte to its highest, with the search table of the unwind tables
  // behind it; the mapping shows the part of it that holds the code.
  void write(const std::string& name, const File& contents, proc::Mapping& mapping) {
    constexpr memory::Address page = 0x1000;
    memory::Address low = mapping.start - contents.bias;
    memory::Address high = mapping.end - contents.bias;
    for (const auto& [va, bytes] : contents.pieces) {
      low = std::min(low, va / page * page);
      high = std::max(high, (va + bytes.size() + page - 1) / page * page);
    }
    Bytes table = bytes_of({1, 0xff, 0x03, 0x3b});
    append_value(table, static_cast<std::uint32_t>(contents.functions.size()));
    for (const auto& [begin, fde] : contents.functions) {
      append_value(table, static_cast<std::int32_t>(begin - high));
      append_value(table, static_cast<std::int32_t>(fde - high));
    }
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_machine = layout_->machine == elf::Machine::aarch64 ? EM_AARCH64 : EM_X86_64;
    header.e_phoff = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 3;
    Elf64_Phdr code{};
    code.p_type = PT_LOAD;
    code.p_flags = PF_R | PF_X;
    code.p_vaddr = low;
    code.p_offset = page;
    code.p_filesz = code.p_memsz = high - low;
    Elf64_Phdr tables = code;
    tables.p_flags = PF_R;
    tables.p_vaddr = high;
    tables.p_offset = page + high - low;
    tables.p_filesz = tables.p_memsz = table.size();
    Elf64_Phdr search = tables;
    search.p_type = PT_GNU_EH_FRAME;
    Bytes begin;
    append_value(begin, header);
    append_value(begin, code);
    append_value(begin, tables);
    append_value(begin, search);

    mapping.path = "/" + name;
    mapping.offset = page + mapping.start - contents.bias - low;
    const std::string root = proc_root() + "/1/root";
    std::filesystem::create_directories(root);
    const int fd = ::open((root + mapping.path).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const auto put = [fd](const Bytes& bytes, std::uint64_t offset) {
      if (::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)) !=
          static_cast<ssize_t>(bytes.size()))
        std::abort();
    };
    put(begin, 0);
    for (const auto& [va, bytes] : contents.pieces) put(bytes, page + va - low);
    put(table, page + high - low);
    struct stat status {};
    if (::fstat(fd, &status) != 0) std::abort();
    ::close(fd);
    mapping.dev_major = major(status.st_dev);
    mapping.dev_minor = minor(status.st_dev);
    mapping.inode = status.st_ino;
  }

  TemporaryDirectory directory_;
  const unwind::Layout* layout_ = &unwind::x86_64;
  unwind::Registers registers_;
  std::vector<memory::Address> frames_;
  std::vector<proc::Mapping> mappings_;
  memory::BufferReader reader_;
  elf::ModuleCache modules_;
  unwind::UnwindCache cache_;
  std::unique_ptr<elf::ProcessModules> process_;
};

}  // namespace hangtrace::tests
