#include <doctest/doctest.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>

#include "elf/debug_file.hpp"
#include "elf/module.hpp"
#include "elf/open.hpp"
#include "elf/symbols.hpp"
#include "tests/elf_builder.hpp"
#include "tests/fake_proc.hpp"

using namespace hangtrace;
using namespace hangtrace::tests;

namespace {

Bytes id_note(unsigned last) {
  Bytes note;
  append_value(note, std::uint32_t{4});
  append_value(note, std::uint32_t{4});
  append_value(note, std::uint32_t{NT_GNU_BUILD_ID});
  append(note, bytes_of({'G', 'N', 'U', 0, 0xab, 0xcd, 0x01, last}));
  return note;
}

// The files of one program: 0x100 bytes of text at the same place in each.
struct Parts {
  ElfBuilder builder;
  std::uint64_t text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x100));

  Parts& id(unsigned last) {
    builder.add_section(".note.gnu.build-id", SHT_NOTE, id_note(last));
    return *this;
  }
  Parts& link(const std::string& name, std::uint32_t crc) {
    Bytes bytes;
    append(bytes, std::as_bytes(std::span(name.c_str(), name.size() + 1)));
    while (bytes.size() % 4 != 0) bytes.push_back(std::byte{0});
    append_value(bytes, crc);
    builder.add_section(".gnu_debuglink", SHT_PROGBITS, bytes);
    return *this;
  }
  Parts& symbol(const std::string& name, std::uint32_t type = SHT_SYMTAB) {
    builder.add_symbols({{name, text + 0x20, 0x20, STT_FUNC, STB_LOCAL}}, type);
    return *this;
  }
};

void write(const FakeProc& directory, const std::string& path, const Parts& parts) {
  const Bytes bytes = parts.builder.build();
  directory.write(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string found(const FakeProc& directory, const Parts& stripped) {
  auto opened =
      elf::Module::open(std::make_unique<elf::BufferSource>(stripped.builder.build()), "/opt/app/libwork.so");
  REQUIRE(opened.module);
  opened.module->set_root(directory.root());
  const elf::SymbolQuery query{opened.module.get(), stripped.text + 0x30};
  const auto* symbol = elf::symbolize_separate(std::span(&query, 1)).front();
  return symbol == nullptr ? "" : symbol->name;
}

}  // namespace

TEST_CASE("names come from the debug file with the module's build-id") {
  const FakeProc root;
  write(root, "usr/lib/debug/.build-id/ab/cd0107.debug", Parts().id(7).symbol("hidden"));
  CHECK(found(root, Parts().id(7)) == "hidden");
  CHECK(found(root, Parts().id(8)) == "");
  CHECK(found(root, Parts()) == "");
}

TEST_CASE("a debug file that is another program's is not taken, wherever it lies") {
  const FakeProc root;
  write(root, "usr/lib/debug/.build-id/ab/cd0107.debug", Parts().id(8).symbol("wrong"));
  write(root, "opt/app/libwork.debug", Parts().id(9).symbol("wrong"));
  write(root, "opt/app/.debug/libwork.debug", Parts().symbol("wrong"));
  CHECK(found(root, Parts().id(7).link("libwork.debug", 0)) == "");
  write(root, "usr/lib/debug/opt/app/libwork.debug", Parts().id(7).symbol("right"));
  CHECK(found(root, Parts().id(7).link("libwork.debug", 0)) == "right");
}

TEST_CASE("without build-id the checksum of the debug link decides") {
  const FakeProc root;
  const Parts debug = Parts().symbol("hidden");
  const Bytes bytes = debug.builder.build();
  // CRC-32 computed bit by bit, apart from the table of the reader.
  std::uint32_t crc = ~0U;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320 : 0);
  }
  write(root, "opt/app/.debug/libwork.debug", debug);
  CHECK(found(root, Parts().link("libwork.debug", ~crc)) == "hidden");
  CHECK(found(root, Parts().link("libwork.debug", crc)) == "");
  CHECK(found(root, Parts().link("../app/.debug/libwork.debug", ~crc)) == "");
}

TEST_CASE("a file with a full table of its own needs no other") {
  const FakeProc root;
  write(root, "usr/lib/debug/.build-id/ab/cd0107.debug", Parts().id(7).symbol("other"));
  Parts full;
  full.id(7).builder.add_symbols({{"elsewhere", full.text, 0x10}});
  CHECK(found(root, full) == "");
  CHECK(found(root, Parts().id(7).symbol("exported", SHT_DYNSYM)) == "other");
}

TEST_CASE("absolute links of a container lead nowhere but into it") {
  const FakeProc root;
  write(root, "elsewhere/debug/.build-id/ab/cd0107.debug", Parts().id(7).symbol("inside"));
  std::filesystem::create_directories(root.root() + "/usr/lib");
  std::filesystem::create_symlink("/elsewhere/debug", root.root() + "/usr/lib/debug");
  CHECK(found(root, Parts().id(7)) == "inside");
  std::filesystem::create_symlink("/../../../elsewhere/debug", root.root() + "/up");
  CHECK(elf::open_below(root.root(), "/up/.build-id/ab/cd0107.debug"));
  std::filesystem::create_symlink("/etc/passwd", root.root() + "/out");
  REQUIRE(std::filesystem::exists("/etc/passwd"));
  CHECK_FALSE(elf::open_below(root.root(), "/out"));
}

TEST_CASE("only regular files are opened") {
  const FakeProc root;
  REQUIRE(::mkfifo((root.root() + "/fifo").c_str(), 0600) == 0);
  CHECK_FALSE(elf::open_below(root.root(), "/fifo"));
  CHECK_FALSE(elf::open_regular("/dev/zero"));
  CHECK_FALSE(elf::open_regular(root.root()));
}
