#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "elf/source.hpp"
#include "memory/reader.hpp"

namespace hangtrace::elf {

using memory::Address;

enum class Machine { x86_64, aarch64, other };

struct Segment {  // PT_LOAD
  Address va;
  std::uint64_t offset;
  std::uint64_t file_size;
  std::uint64_t memory_size;
  bool executable;
  bool writable;
};

struct Section {
  std::string name;
  std::uint32_t type;
  std::uint32_t link;
  std::uint64_t flags;
  Address va;
  std::uint64_t offset;
  std::uint64_t size;
};

struct SymbolCache;
struct DeleteSymbolCache {
  void operator()(SymbolCache* cache) const;
};
using SymbolCachePointer = std::unique_ptr<SymbolCache, DeleteSymbolCache>;
SymbolCachePointer make_symbol_cache();  // elf/symbols.cpp

class Module;

struct OpenedModule {
  std::shared_ptr<Module> module;  // null: see problem
  std::string problem;
};

/// One ELF64 little-endian file. Everything in it is untrusted: each offset and size is checked against the
/// file before use, and a broken table makes a lookup fail, not the module.
//
/// "va" is always the address the file was linked at; the address in a process is va + bias (Location::bias).
/// Constant after it was opened, but for what is read of the file on demand, which several threads may ask
/// for.
class Module {
 public:
  static OpenedModule open(std::unique_ptr<Source> source, std::string path);
  /// An image that was copied from the memory of a process, where the file's first byte lies at `start`.
  static OpenedModule open_image(std::unique_ptr<Source> source, std::string path, Address start);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& path() const { return path_; }  // as the target's maps name it
  Machine machine() const { return machine_; }
  const std::vector<Segment>& segments() const { return segments_; }
  const std::vector<Section>& sections() const { return sections_; }
  const Section* section(std::string_view name) const;
  std::span<const std::byte> build_id() const { return build_id_; }  // empty: none
  std::string build_id_hex() const;
  /// va of PT_GNU_EH_FRAME (.eh_frame_hdr) and its size in the file.
  std::optional<std::pair<Address, std::uint64_t>> eh_frame_header() const { return eh_frame_header_; }

  /// Bytes as linked, by va (without relocations); false if any byte is not backed by the file.
  bool read_va(Address va, std::span<std::byte> into) const;
  template <class T>
  std::optional<T> value_at(Address va) const {
    T value;
    if (!read_va(va, std::as_writable_bytes(std::span(&value, 1)))) return std::nullopt;
    return value;
  }
  bool is_code(Address va) const;  // in an executable segment
  bool read_file(std::uint64_t offset, std::span<std::byte> into) const { return bytes_.read(offset, into); }
  /// Copies up to `max` bytes of a section, decompressed (zlib); nullopt if it is larger, not in the file, or
  /// cannot be read.
  std::optional<std::vector<std::byte>> section_bytes(const Section& section, std::uint64_t max) const;
  const CachedReader& bytes() const { return bytes_; }

  /// The root directory of a process that has it mapped ("/proc/PID/root"), where its debug file may lie,
  /// too. Not while another thread asks for that file.
  void set_root(std::string root) { root_ = std::move(root); }
  /// Searched for once (elf/debug_file.hpp); nullptr: there is none. One thread at a time.
  const Module* separate_debug_file() const;

  SymbolCache& symbol_cache() const { return *symbols_; }

 private:
  Module(std::unique_ptr<Source> source, std::string path);
  std::string parse();
  std::string parse_segments(std::uint64_t offset, std::size_t count);
  void parse_sections(std::uint64_t offset, std::size_t count, std::size_t names);
  void parse_notes(std::uint64_t offset, std::uint64_t size);

  CachedReader bytes_;
  std::string path_;
  Machine machine_ = Machine::other;
  std::vector<Segment> segments_;
  std::vector<Section> sections_;
  std::vector<std::byte> build_id_;
  std::optional<std::pair<Address, std::uint64_t>> eh_frame_header_;
  std::optional<std::pair<Address, std::uint64_t>> dynamic_;
  SymbolCachePointer symbols_;
  std::string root_;
  mutable bool debug_file_tried_ = false;
  mutable std::shared_ptr<Module> debug_file_;
};

}  // namespace hangtrace::elf
