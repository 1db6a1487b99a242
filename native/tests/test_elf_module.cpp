#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <random>

#include "elf/cursor.hpp"
#include "elf/demangle.hpp"
#include "elf/module.hpp"
#include "elf/source.hpp"
#include "elf/symbols.hpp"
#include "elf/xz.hpp"
#include "tests/elf_builder.hpp"

using namespace hangtrace;
using namespace hangtrace::tests;

namespace {

elf::OpenedModule open_bytes(Bytes bytes) {
  return elf::Module::open(std::make_unique<elf::BufferSource>(std::move(bytes)), "made");
}

Bytes sample() {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(256));
  Bytes note;
  append_value(note, std::uint32_t{4});
  append_value(note, std::uint32_t{3});
  append_value(note, std::uint32_t{NT_GNU_BUILD_ID});
  append(note, bytes_of({'G', 'N', 'U', 0, 0xab, 0xcd, 0x01, 0}));
  builder.add_section(".note.gnu.build-id", SHT_NOTE, note);
  EhFrameBuilder frames(bytes_of({0x0c, 7, 8, 0x90, 1}));
  frames.add_fde(text, 128, bytes_of({0x41, 0x0e, 16}));
  builder.add_section(".eh_frame", SHT_PROGBITS, frames.build());
  builder.add_symbols({{"first", text, 64}, {"second", text + 64, 64}});
  return builder.build();
}

}  // namespace

TEST_CASE("a cursor stops at the end and stays there") {
  const Bytes bytes = bytes_of({1, 0x80, 0x80});
  elf::Cursor cursor(bytes);
  CHECK(cursor.value<std::uint8_t>() == 1);
  CHECK(cursor.uleb() == 0);
  CHECK_FALSE(cursor.ok());
  CHECK(cursor.value<std::uint64_t>() == 0);
  CHECK(cursor.cstring().empty());
  CHECK(cursor.take(0).empty());
}

TEST_CASE("LEB128 of every sign and of too many bytes") {
  const Bytes bytes = bytes_of({0xe5, 0x8e, 0x26, 0x7f, 0x80, 0x7f, 0xc0, 0xbb, 0x78});
  elf::Cursor cursor(bytes);
  CHECK(cursor.uleb() == 624485);
  CHECK(cursor.sleb() == -1);
  CHECK(cursor.sleb() == -128);
  CHECK(cursor.sleb() == -123456);
  CHECK(cursor.ok());
  const Bytes endless(64, std::byte{0x80});
  elf::Cursor other(endless);
  CHECK(other.uleb() == 0);
  CHECK_FALSE(other.ok());
}

TEST_CASE("a made file is read as it was made") {
  const auto opened = open_bytes(sample());
  REQUIRE(opened.module);
  CHECK(opened.problem.empty());
  CHECK(opened.module->machine() == elf::Machine::x86_64);
  CHECK(opened.module->build_id_hex() == "abcd01");
  REQUIRE(opened.module->section(".text") != nullptr);
  CHECK(opened.module->section(".text")->size == 256);
  CHECK(opened.module->section(".nothing") == nullptr);
  CHECK(opened.module->is_code(ElfBuilder::base_va));
  CHECK_FALSE(opened.module->is_code(0));
  CHECK(opened.module->value_at<std::uint32_t>(ElfBuilder::base_va) == std::uint32_t{0x464c457f});
  CHECK_FALSE(opened.module->value_at<std::uint32_t>(ElfBuilder::base_va - 1));
  CHECK_FALSE(opened.module->value_at<std::uint32_t>(~std::uint64_t{0} - 2));
}

TEST_CASE("what is no 64-bit ELF file is refused with the reason") {
  CHECK(open_bytes({}).problem == "not an ELF file");
  CHECK(open_bytes(Bytes(4096)).problem == "not an ELF file");
  Bytes other = sample();
  other[EI_CLASS] = std::byte{ELFCLASS32};
  CHECK(open_bytes(other).problem == "32-bit ELF file");
  other[EI_CLASS] = std::byte{ELFCLASS64};
  other[EI_DATA] = std::byte{ELFDATA2MSB};
  CHECK(open_bytes(other).problem == "big-endian ELF file");
  CHECK(elf::Module::open(nullptr, "").problem == "not a regular file");
}

TEST_CASE("truncated and damaged files never break the reader") {
  const Bytes whole = sample();
  const auto use = [](const Bytes& bytes) {
    const auto opened = open_bytes(bytes);
    if (!opened.module) return;
    const elf::SymbolQuery query{opened.module.get(), ElfBuilder::base_va + 200};
    elf::symbolize(std::span(&query, 1));
    elf::find_symbol(*opened.module, "second");
    for (const elf::Section& section : opened.module->sections())
      opened.module->section_bytes(section, 1 << 20);
  };
  for (std::size_t size = 0; size < whole.size(); ++size)
    use(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
  std::mt19937 random(20240607);
  for (int round = 0; round < 20000; ++round) {
    Bytes damaged = whole;
    for (int change = 0; change < 6; ++change) {
      // The headers, where each byte matters, as often as the rest.
      const std::size_t range = random() % 2 == 0 ? 176 : damaged.size();
      damaged[random() % range] = static_cast<std::byte>(random() % 3 == 0 ? 0xff : random());
    }
    use(damaged);
  }
}

TEST_CASE("a file that shrinks while it is open gives failed reads") {
  char path[] = "/tmp/hangtrace-module-XXXXXX";
  const int fd = ::mkstemp(path);
  REQUIRE(fd >= 0);
  const Bytes bytes = sample();
  REQUIRE(::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  auto source = elf::FileSource::adopt(::open(path, O_RDONLY | O_CLOEXEC));
  REQUIRE(source);
  const auto opened = elf::Module::open(std::move(source), path);
  REQUIRE(opened.module);
  CHECK_FALSE(opened.module->bytes().source().changed());
  REQUIRE(::ftruncate(fd, 16) == 0);
  CHECK(opened.module->bytes().source().changed());
  CHECK_FALSE(elf::find_symbol(*opened.module, "second"));
  ::close(fd);
  ::unlink(path);
}

TEST_CASE("only regular files become sources") {
  CHECK_FALSE(elf::FileSource::adopt(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  CHECK_FALSE(elf::FileSource::adopt(-1));
}

TEST_CASE("names are demangled, other text is left alone") {
  CHECK(elf::demangle("_ZN4gloo4waitEi") == "gloo::wait(int)");
  CHECK(elf::demangle("sem_wait") == "sem_wait");
  CHECK(elf::demangle("_Zbroken") == "_Zbroken");
  CHECK(elf::demangle("") == "");
  CHECK(elf::demangle("_Z4workv.part.0") == "work() [clone .part.0]");
  CHECK(elf::demangle("_Z4workv.llvm.1234") == "work()");
}

TEST_CASE("Rust's older mangling: without hash, escapes undone") {
  CHECK(elf::demangle("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE") == "core::fmt::Formatter::pad");
  CHECK(elf::demangle(
            "_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3bar17h930b740aa94"
            "f1d3aE") == "<Test + 'static as foo::Bar<Test>>::bar");
  CHECK(elf::demangle("_ZN3foo17h05af221e174051e9E") == "foo");
  // No hash, or one that is none: C++.
  CHECK(elf::demangle("_ZN3foo3barEv") == "foo::bar()");
  CHECK(elf::demangle("_ZN3foo17h05af221e174051eXE") == "foo::h05af221e174051eX");
  CHECK(elf::demangle("_ZN7a$zz$b_17h05af221e174051e9E") == "a$zz$b_");
}

TEST_CASE("broken xz data is refused") {
  CHECK_FALSE(elf::unpack_xz(bytes_of({1, 2, 3, 4, 5, 6, 7, 8}), 1 << 20));
  CHECK_FALSE(elf::unpack_xz({}, 1 << 20));
}
