#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>

#include "elf/module.hpp"
#include "elf/symbols.hpp"
#include "elf/xz.hpp"
#include "tests/elf_builder.hpp"

#ifdef HT_HAVE_LZMA
#include <lzma.h>
#endif

using namespace hangtrace;
using namespace hangtrace::tests;

namespace {

std::shared_ptr<elf::Module> open_built(const ElfBuilder& builder) {
  return elf::Module::open(std::make_unique<elf::BufferSource>(builder.build()), "made").module;
}

std::string name_of(elf::Module& module, elf::Address va) {
  const elf::SymbolQuery query{&module, va};
  const elf::Symbol* symbol = elf::symbolize(std::span(&query, 1)).front();
  return symbol == nullptr ? "" : symbol->name;
}

}  // namespace

TEST_CASE("an address belongs to the symbol that covers it and to no other") {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x400));
  builder.add_symbols({{"_Z5outerv", text, 0x100},
                       {"inner", text + 0x40, 0x20},
                       {"data", text + 0x100, 0x40, STT_OBJECT},
                       {"__read", text + 0x200, 0x40},
                       {"read", text + 0x200, 0x40, STT_FUNC, STB_WEAK},
                       {"local_read", text + 0x200, 0x40, STT_FUNC, STB_LOCAL},
                       {"versioned@@V1", text + 0x240, 0x10}});
  const auto module = open_built(builder);
  REQUIRE(module);
  CHECK(name_of(*module, text) == "outer()");
  CHECK(name_of(*module, text + 0x3f) == "outer()");
  CHECK(name_of(*module, text + 0x40) == "inner");
  CHECK(name_of(*module, text + 0x5f) == "inner");
  CHECK(name_of(*module, text + 0x60) == "outer()");
  CHECK(name_of(*module, text + 0x100) == "");
  CHECK(name_of(*module, text + 0x120) == "");
  CHECK(name_of(*module, text + 0x23f) == "read");
  CHECK(name_of(*module, text + 0x240) == "versioned");
  CHECK(name_of(*module, text + 0x250) == "");
}

TEST_CASE("of addresses that are asked for together each gets its symbol, however large that is") {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x10000));
  builder.add_symbols({{"wide", text, 0x8000},
                       {"from_before", text + 0x100, 0x100},
                       {"byte", text + 0x400, 1},
                       {"crossing", text + 0x50c, 8},
                       {"some", text + 0x600, 0x50},
                       {"wraps", text + 0x700, ~std::uint64_t{0}},
                       {"last", text + 0xffff, 1}});
  const auto module = open_built(builder);
  REQUIRE(module);
  const std::vector<std::pair<std::uint64_t, std::string>> expected{
      {0x1f0, "from_before"}, {0x3ff, "wide"}, {0x400, "byte"}, {0x401, "wide"}, {0x50c, "crossing"},
      {0x513, "crossing"},    {0x514, "wide"}, {0x640, "some"}, {0x650, "wide"}, {0x740, "wide"},
      {0x7fff, "wide"},       {0x8000, ""},    {0xfffe, ""},    {0xffff, "last"}};
  std::vector<elf::SymbolQuery> queries;
  for (const auto& [at, name] : expected) queries.push_back({module.get(), text + at});
  const auto answers = elf::symbolize(queries);
  REQUIRE(answers.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(expected[i].first);
    CHECK((answers[i] == nullptr ? "" : answers[i]->name) == expected[i].second);
  }
}

TEST_CASE("many addresses of several modules are answered in their order") {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x10000));
  std::vector<ElfBuilder::Symbol> symbols;
  for (unsigned i = 0; i < 0x1000; ++i) symbols.push_back({"f" + std::to_string(i), text + 16 * i, 16});
  builder.add_symbols(symbols);
  const auto one = open_built(builder);
  const auto other = open_built(builder);
  std::vector<elf::SymbolQuery> queries;
  for (unsigned i = 0; i < 0x1000; i += 7) {
    queries.push_back({one.get(), text + 16 * i + 3});
    queries.push_back({other.get(), text + 16 * (0xfff - i)});
    queries.push_back({nullptr, text});
  }
  const auto answers = elf::symbolize(queries);
  REQUIRE(answers.size() == queries.size());
  for (unsigned i = 0, at = 0; i < 0x1000; i += 7, at += 3) {
    REQUIRE(answers[at] != nullptr);
    CHECK(answers[at]->name == "f" + std::to_string(i));
    CHECK(answers[at]->start == text + 16 * i);
    CHECK(answers[at + 1]->name == "f" + std::to_string(0xfff - i));
    CHECK(answers[at + 2] == nullptr);
  }
}

TEST_CASE("a symbol without size reaches up to the next one, and only in a full table") {
  const auto build = [](std::uint32_t type) {
    ElfBuilder builder;
    const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x100));
    builder.add_symbols({{"assembly", text, 0}, {"sized", text + 0x40, 0x20}}, type);
    return std::pair(open_built(builder), text);
  };
  const auto [full, text] = build(SHT_SYMTAB);
  CHECK(name_of(*full, text + 0x10) == "assembly");
  CHECK(name_of(*full, text + 0x50) == "sized");
  CHECK(name_of(*full, text + 0x60) == "");
  const auto [stripped, same_text] = build(SHT_DYNSYM);
  CHECK(name_of(*stripped, same_text + 0x10) == "");
  CHECK(name_of(*stripped, same_text + 0x50) == "sized");
}

TEST_CASE("of several names of one address the one that people know is taken") {
  const auto chosen = [](std::vector<ElfBuilder::Symbol> symbols) {
    ElfBuilder builder;
    const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x100));
    for (auto& symbol : symbols) symbol.va += text;
    builder.add_symbols(symbols);
    const auto forwards = name_of(*open_built(builder), text + 8);
    std::ranges::reverse(symbols);
    ElfBuilder other;
    other.add_section(".text", SHT_PROGBITS, Bytes(0x100));
    other.add_symbols(symbols);
    CHECK(name_of(*open_built(other), text + 8) == forwards);  // whatever their order
    return forwards;
  };
  CHECK(chosen({{"local", 0, 16, STT_FUNC, STB_LOCAL}, {"__exported", 0, 16}}) == "__exported");
  CHECK(chosen({{"strong", 0, 16}, {"weak", 0, 16, STT_FUNC, STB_WEAK}}) == "strong");
  CHECK(chosen({{"__strong", 0, 16}, {"_weak", 0, 16, STT_FUNC, STB_WEAK}}) == "_weak");
  CHECK(chosen({{"memmove@@V2", 0, 16}, {"memcpy@V1", 0, 16}, {"memory", 0, 16}}) == "memmove");
  CHECK(chosen({{"bb", 0, 16}, {"a", 0, 16}, {"c", 0, 16}}) == "a");
  CHECK(chosen({{"unsized", 0, 0}, {"zsized", 0, 16, STT_FUNC, STB_LOCAL}}) == "zsized");
  CHECK(chosen({{"resolved", 0, 16, STT_GNU_IFUNC}}) == "resolved");
  CHECK(chosen({{"work.part.0", 0, 16, STT_FUNC, STB_LOCAL}}) == "work.part.0");
  CHECK(chosen({{"_Z4workv.cold", 0, 16, STT_FUNC, STB_LOCAL}}) == "work() [clone .cold]");
  CHECK(chosen({{"$x", 0, 16, STT_NOTYPE, STB_LOCAL}}) == "");
}

TEST_CASE("a symbol without size ends at the next symbol and with its section") {
  ElfBuilder builder;
  const auto init = builder.add_section(".init", SHT_PROGBITS, Bytes(0x20));
  const auto plt = builder.add_section(".plt", SHT_PROGBITS, Bytes(0x40));
  builder.add_symbols({{"_init", init, 0}});
  const auto module = open_built(builder);
  CHECK(name_of(*module, init + 0x1f) == "_init");
  CHECK(name_of(*module, plt) == "");
  CHECK(name_of(*module, plt + 0x10) == "");

  ElfBuilder ended;
  const auto text = ended.add_section(".text", SHT_PROGBITS, Bytes(0x100));
  ended.add_symbols({{"label", text, 0}, {"function", text, 0x10}});
  CHECK(name_of(*open_built(ended), text + 8) == "function");
  CHECK(name_of(*open_built(ended), text + 0x20) == "");  // the function there has ended
}

TEST_CASE("symbols are found by name, exported before local, also as the tail of another name") {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x100));
  builder.add_symbols({{"twice", text + 1, 8, STT_FUNC, STB_LOCAL},
                       {"twice", text + 2, 8},
                       {"_PyRuntime", text + 3, 8, STT_OBJECT},
                       {"file", text + 4, 8, STT_FILE}});
  const auto module = open_built(builder);
  const std::vector<std::string_view> names{"twice", "nothing", "_PyRuntime", "file", "Runtime", ""};
  const auto found = elf::find_symbols(*module, names);
  CHECK(found[0] == text + 2);
  CHECK_FALSE(found[1]);
  CHECK(found[2] == text + 3);
  CHECK_FALSE(found[3]);
  CHECK_FALSE(found[4]);
  CHECK_FALSE(found[5]);
  CHECK(elf::find_symbol(*module, "twice") == text + 2);
}

TEST_CASE("this program's own symbols are found") {
  const auto opened =
      elf::Module::open(elf::FileSource::adopt(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), "self");
  REQUIRE(opened.module);
  const auto va = elf::find_symbol(*opened.module, "main");
  REQUIRE(va);
  CHECK(name_of(*opened.module, *va) == "main");
}

#ifdef HT_HAVE_LZMA
TEST_CASE("names of a stripped file come from its packed mini table") {
  ElfBuilder inner;
  const auto text = inner.add_section(".text", SHT_PROGBITS, Bytes(0x100));
  inner.add_symbols({{"hidden_wait", text + 0x20, 0x20, STT_FUNC, STB_LOCAL}});
  inner.add_section(".zeros", SHT_PROGBITS, Bytes(200'000));  // much smaller when packed
  const Bytes plain = inner.build();
  Bytes packed(plain.size() + 4096);
  std::size_t size = 0;
  REQUIRE(lzma_easy_buffer_encode(
              6, LZMA_CHECK_CRC32, nullptr, reinterpret_cast<const std::uint8_t*>(plain.data()), plain.size(),
              reinterpret_cast<std::uint8_t*>(packed.data()), &size, packed.size()) == LZMA_OK);
  packed.resize(size);
  CHECK(elf::unpack_xz(packed, 1 << 20) == plain);
  CHECK_FALSE(elf::unpack_xz(packed, plain.size() / 2));

  ElfBuilder outer;
  REQUIRE(outer.add_section(".text", SHT_PROGBITS, Bytes(0x100)) == text);
  outer.add_section(".gnu_debugdata", SHT_PROGBITS, packed);
  const auto module = open_built(outer);
  CHECK(name_of(*module, text + 0x30) == "hidden_wait");
  CHECK(name_of(*module, text + 0x50) == "");
  CHECK(elf::find_symbol(*module, "hidden_wait") == text + 0x20);
}
#endif
