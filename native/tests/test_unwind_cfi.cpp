#include <doctest/doctest.h>

#include <random>

#include "elf/module.hpp"
#include "tests/elf_builder.hpp"
#include "unwind/cfi.hpp"
#include "unwind/table_cache.hpp"

using namespace hangtrace;
using namespace hangtrace::tests;
using unwind::CfaKind;
using unwind::RuleKind;

namespace {

// def_cfa rsp + 8, return address at CFA - 8
const Bytes usual_cie = bytes_of({0x0c, 7, 8, 0x90, 1});

struct Tables {
  std::shared_ptr<elf::Module> module;
  std::uint64_t text = 0;
  std::unique_ptr<unwind::FrameTable> table;
};

Tables build(const Bytes& instructions, const Bytes& cie = usual_cie,
             const std::string& section = ".eh_frame") {
  ElfBuilder builder;
  Tables result;
  result.text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x200));
  EhFrameBuilder frames(cie);
  frames.add_fde(result.text, 0x100, instructions);
  builder.add_section(section, SHT_PROGBITS, frames.build());
  result.module = elf::Module::open(std::make_unique<elf::BufferSource>(builder.build()), "made").module;
  REQUIRE(result.module);
  result.table = std::make_unique<unwind::FrameTable>(*result.module);
  return result;
}

}  // namespace

TEST_CASE("rows follow the instructions up to the address") {
  // push rbp; mov rbp, rsp; ...; leave
  const Tables made =
      build(bytes_of({0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x02, 0x40, 0x0a, 0x0c, 7, 8, 0x41, 0x0b}));
  const auto at = [&](std::uint64_t offset) { return made.table->row(made.text + offset).row; };
  REQUIRE(at(0));
  CHECK(at(0)->cfa_register == 7);
  CHECK(at(0)->cfa_offset == 8);
  CHECK(at(0)->rules[6].kind == RuleKind::same);
  CHECK(at(0)->rules[16].kind == RuleKind::offset);
  CHECK(at(0)->rules[16].value == -8);
  CHECK(at(1)->cfa_offset == 16);
  CHECK(at(1)->rules[6].value == -16);
  CHECK(at(3)->cfa_register == 7);
  CHECK(at(4)->cfa_register == 6);
  CHECK(at(4)->cfa_offset == 16);
  CHECK(at(0x44)->cfa_register == 7);  // after leave
  CHECK(at(0x44)->cfa_offset == 8);
  CHECK(at(0x45)->cfa_register == 6);  // restored
  CHECK(at(0x45)->rules[6].value == -16);
  CHECK_FALSE(made.table->row(made.text + 0x100).row);
  CHECK_FALSE(made.table->row(made.text + 0x100).broken);
  CHECK_FALSE(made.table->row(made.text - 1).row);
  REQUIRE(made.table->function(made.text + 7));
  CHECK(made.table->function(made.text + 7)->end == made.text + 0x100);
}

TEST_CASE("all kinds of rules") {
  const Tables made =
      build(bytes_of({0x07, 3, 0x09, 12, 13, 0x14, 14,   2, 0x15, 15, 0x7e, 0x11, 3,  0x7f, 0x10, 6, 2,
                      0x76, 0, 0x16, 1,  1,  0x31, 0x0f, 3, 0x77, 8,  0x06, 0x2e, 16, 0x2f, 2,    3}));
  const auto row = made.table->row(made.text).row;
  REQUIRE(row);
  CHECK(row->cfa_kind == CfaKind::expression);
  CHECK(row->expression(row->cfa_offset, row->cfa_expression_size).size() == 3);
  CHECK(row->rules[12].kind == RuleKind::other_register);
  CHECK(row->rules[12].value == 13);
  CHECK(row->rules[14].kind == RuleKind::value_offset);
  CHECK(row->rules[14].value == -16);
  CHECK(row->rules[15].value == 16);
  CHECK(row->rules[3].kind == RuleKind::offset);
  CHECK(row->rules[3].value == 8);
  CHECK(row->rules[6].kind == RuleKind::expression);
  CHECK(row->rules[1].kind == RuleKind::value_expression);
  CHECK(row->expression(row->rules[1].value, row->rules[1].size)[0] == std::byte{0x31});
  CHECK(row->rules[2].value == 24);
}

TEST_CASE("a restored register is that of the CIE") {
  const Tables made = build(bytes_of({0x90, 4, 0xd0, 0x05, 16, 4, 0x06, 16}));
  REQUIRE(made.table->row(made.text).row);
  CHECK(made.table->row(made.text).row->rules[16].value == -8);
}

TEST_CASE("unusable instructions are reported, not followed") {
  for (const auto& instructions : {bytes_of({0x0b}),                    // restore without remember
                                   bytes_of({0x3f}),                    // unknown
                                   bytes_of({0x0f, 0xff, 0xff, 0x7f}),  // expression longer than the entry
                                   bytes_of({0x0c, 0xff, 0x7f, 8}),     // CFA of a register that is none
                                   bytes_of({0x0f, 0, 0x0e, 8})}) {  // offset of a CFA that is an expression
    const Tables made = build(instructions);
    CHECK_FALSE(made.table->row(made.text).row);
    CHECK(made.table->row(made.text).broken);
  }
  const Tables without_cfa = build({}, {});
  CHECK(without_cfa.table->row(without_cfa.text).broken);
  Bytes remembers;
  for (int i = 0; i < 100; ++i) append(remembers, bytes_of({0x0a}));
  const Tables endless = build(remembers);
  CHECK(endless.table->row(endless.text).broken);
}

TEST_CASE(".debug_frame serves where .eh_frame is missing") {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x100));
  Bytes frames;
  Bytes cie;
  append_value(cie, std::uint32_t{0xffffffff});
  append(cie, bytes_of({4, 0, 8, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0, 0, 0}));
  append_value(frames, static_cast<std::uint32_t>(cie.size()));
  append(frames, cie);
  Bytes fde;
  append_value(fde, std::uint32_t{0});
  append_value(fde, text + 0x10);
  append_value(fde, std::uint64_t{0x20});
  append(fde, bytes_of({0x44, 0x0e, 32, 0}));
  append_value(frames, static_cast<std::uint32_t>(fde.size()));
  append(frames, fde);
  builder.add_section(".debug_frame", SHT_PROGBITS, frames);
  const auto module = elf::Module::open(std::make_unique<elf::BufferSource>(builder.build()), "made").module;
  unwind::FrameTable table(*module);
  CHECK_FALSE(table.row(text).row);
  REQUIRE(table.row(text + 0x10).row);
  CHECK(table.row(text + 0x10).row->cfa_offset == 8);
  CHECK(table.row(text + 0x14).row->cfa_offset == 32);
  CHECK_FALSE(table.row(text + 0x30).row);
}

TEST_CASE("the search table of .eh_frame_hdr is used in each form, and done without where there is none") {
  // datarel sdata4, sdata8, absolute udata4, udata8, pcrel sdata4; uleb128 cannot be searched; omitted
  for (const unsigned table_encoding : {0x3bu, 0x3cu, 0x03u, 0x04u, 0x1bu, 0x01u, 0xffu}) {
    const auto put = [&](Bytes& table, std::uint64_t va, std::uint64_t header_va) {
      const std::uint64_t base =
          table_encoding >> 4 == 3 ? header_va : (table_encoding >> 4 == 1 ? header_va + table.size() : 0);
      const bool is_long = table_encoding == 0x3c || table_encoding == 0x04;
      if (is_long) {
        append_value(table, va - base);
      } else {
        append_value(table, static_cast<std::uint32_t>(va - base));
      }
    };
    ElfBuilder builder;
    const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x300));
    EhFrameBuilder frames(usual_cie);
    std::vector<std::uint64_t> positions;
    for (unsigned i = 0; i < 3; ++i) {
      positions.push_back(frames.build().size() - 4);
      frames.add_fde(text + 0x100 * i, 0x80, bytes_of({0x0e, 16 + 8 * i}));
    }
    const auto section = builder.add_section(".eh_frame", SHT_PROGBITS, frames.build());
    const auto header_va = (section + frames.build().size() + 15) / 16 * 16;
    Bytes header = bytes_of({1, 0x1b, 0x03, table_encoding});
    append_value(header, static_cast<std::int32_t>(section - (header_va + 4)));
    append_value(header, std::uint32_t{3});
    for (unsigned i = 0; i < 3; ++i) {
      put(header, text + 0x100 * i, header_va);
      put(header, section + positions[i], header_va);
    }
    REQUIRE(builder.add_section(".eh_frame_hdr", SHT_PROGBITS, header) == header_va);
    builder.set_eh_frame_header(header_va, header.size());
    const auto module =
        elf::Module::open(std::make_unique<elf::BufferSource>(builder.build()), "made").module;
    unwind::FrameTable table(*module);
    CAPTURE(table_encoding);
    for (unsigned i = 0; i < 3; ++i) {
      REQUIRE(table.row(text + 0x100 * i + 0x7f).row);
      CHECK(table.row(text + 0x100 * i + 0x7f).row->cfa_offset == 16 + 8 * i);
      CHECK_FALSE(table.row(text + 0x100 * i + 0x80).row);
    }
  }
}

TEST_CASE("damaged tables never break the evaluator") {
  std::mt19937 random(20240607);
  const Bytes instructions =
      bytes_of({0x41, 0x0e, 16,   0x86, 2, 0x43, 0x0d, 6, 0x02, 0x40, 0x0a, 0x0f, 3,
                0x77, 8,    0x06, 0x10, 6, 2,    0x76, 0, 0x0b, 0x16, 1,    1,    0x31});
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x200));
  EhFrameBuilder frames(usual_cie, "z");
  frames.add_fde(text, 0x100, instructions, true);
  frames.add_fde(text + 0x100, 0x100, instructions, true);
  const Bytes table_bytes = frames.build();
  const auto section = builder.add_section(".eh_frame", SHT_PROGBITS, table_bytes);
  const Bytes whole = builder.build();
  const std::size_t begin = section - ElfBuilder::base_va;
  for (int round = 0; round < 20000; ++round) {
    Bytes damaged = whole;
    const unsigned changes = 1 + random() % 4;
    for (unsigned change = 0; change < changes; ++change) {
      damaged[begin + random() % table_bytes.size()] =
          static_cast<std::byte>(random() % 4 == 0 ? 0xff : random());
    }
    const auto module =
        elf::Module::open(std::make_unique<elf::BufferSource>(std::move(damaged)), "made").module;
    REQUIRE(module);
    unwind::FrameTable table(*module);
    for (const std::uint64_t offset : {0u, 0x45u, 0xffu, 0x100u, 0x1ffu}) {
      const auto answer = table.row(text + offset);
      if (answer.row) CHECK(answer.row->cfa_kind != CfaKind::none);
    }
  }
}
