#include <doctest/doctest.h>

#include "capture/eval_parts.hpp"
#include "elf_builder.hpp"

using namespace hangtrace;
using tests::Bytes;
using tests::bytes_of;

namespace {

constexpr std::uint64_t part_size = 0x40;

// A stripped library: functions of 64 bytes each in .text, the first of them the exported evaluation loop,
// and a procedure linkage table. Unwind tables cover each function, and the linkage table as a whole.
struct Library {
  Bytes text = Bytes(4 * part_size);
  std::uint64_t va = tests::ElfBuilder().add_section(".text", SHT_PROGBITS, {});  // that of the first section
  std::uint64_t cold = va + part_size;
  std::uint64_t other = va + 2 * part_size;
  std::uint64_t callee = va + 3 * part_size;
  std::uint64_t linkage = va + 4 * part_size;
  std::size_t next = 0;
  std::shared_ptr<elf::Module> module;
  unwind::TableCache tables;
  capture::EvalParts parts{tables};

  // Puts a jump into the loop; `opcode`: of two bytes with a 32-bit distance behind.
  void jump(std::initializer_list<unsigned> opcode, std::uint64_t target) {
    for (const unsigned byte : opcode) text[next++] = static_cast<std::byte>(byte);
    const auto distance = static_cast<std::int32_t>(target - (va + next + 4));
    std::memcpy(&text[next], &distance, 4);
    next += 4;
  }

  void finish(const std::string& loop_name = "_PyEval_EvalFrameDefault") {
    tests::ElfBuilder builder;
    REQUIRE(builder.add_section(".text", SHT_PROGBITS, text) == va);
    REQUIRE(builder.add_section(".plt", SHT_PROGBITS, Bytes(part_size)) == linkage);
    tests::EhFrameBuilder frames(bytes_of({0x0c, 7, 8, 0x90, 1}));
    for (std::uint64_t begin = va; begin <= linkage; begin += part_size) frames.add_fde(begin, part_size, {});
    builder.add_section(".eh_frame", SHT_PROGBITS, frames.build());
    builder.add_symbols({{loop_name, va, part_size}}, SHT_DYNSYM);
    module = elf::Module::open(std::make_unique<elf::BufferSource>(builder.build()), "libpython.so").module;
    REQUIRE(module);
  }
};

}  // namespace

TEST_CASE("eval parts: what the loop jumps into the middle of is a part of it") {
  Library library;
  library.jump({0x0f, 0x84}, library.cold + 8);
  library.jump({0x0f, 0x8f}, library.cold + 24);
  library.finish();
  CHECK(library.parts.contains(*library.module, library.cold));
  CHECK(library.parts.contains(*library.module, library.cold + part_size - 1));
  CHECK_FALSE(library.parts.contains(*library.module, library.cold + part_size));
  CHECK_FALSE(library.parts.contains(*library.module, library.va));  // it has its name
}

TEST_CASE("eval parts: begins, linkage tables and one doubtful jump prove nothing") {
  Library library;
  library.jump({0x0f, 0x84}, library.callee);  // a conditional tail call
  library.jump({0x0f, 0x85}, library.callee);
  library.jump({0x0f, 0x84}, library.linkage + 16);  // a conditional tail call through the linkage table
  library.jump({0x0f, 0x85}, library.linkage + 32);
  library.jump({0x0f, 0x84}, library.other + 8);  // may be bytes that only look like a jump
  library.jump({0x0f, 0x85}, library.other + 8);
  library.jump({0x0f, 0x84}, 0x7fffffff);
  library.jump({0x90, 0xe9}, library.cold + 8);  // tail calls can be of any kind
  library.finish();
  for (std::uint64_t va = library.va; va < library.linkage + part_size; va += 8) {
    CHECK_FALSE(library.parts.contains(*library.module, va));
  }
}

TEST_CASE("eval parts: a library without the loop has none") {
  Library library;
  library.jump({0x0f, 0x84}, library.cold + 8);
  library.jump({0x0f, 0x8f}, library.cold + 24);
  library.finish("something_else");
  CHECK_FALSE(library.parts.contains(*library.module, library.cold));
}
