// Where the entries of unwind tables are found, and the forms in which they occur.
#include <doctest/doctest.h>

#include <functional>

#include "elf/zlib.hpp"
#include "tests/elf_builder.hpp"
#include "unwind/pointer.hpp"
#include "unwind/table_cache.hpp"

#ifdef HT_HAVE_ZLIB
#include <zlib.h>
#endif

using namespace hangtrace;
using namespace hangtrace::tests;
using unwind::RuleKind;

namespace {

constexpr std::uint64_t text_size = 0x400;

// One entry of a table: what a test says of it, the rest is usual. CFA = rsp + 8 from the CIE.
struct CieForm {
  unsigned version = 1;
  std::string augmentation = "";
  Bytes augmentation_data = {};
  unsigned code_alignment = 1;
  Bytes instructions = bytes_of({0x0c, 7, 8, 0x90, 1});
};

class Section {
 public:
  explicit Section(bool eh_frame, bool is_64_bit = false) : eh_frame_(eh_frame), is_64_bit_(is_64_bit) {}

  std::size_t size() const { return bytes_.size(); }

  std::size_t add_cie(const CieForm& form) {
    Bytes cie;
    if (eh_frame_) {
      append_value(cie, std::uint32_t{0});
    } else if (is_64_bit_) {
      append_value(cie, ~std::uint64_t{0});
    } else {
      append_value(cie, ~std::uint32_t{0});
    }
    append_value(cie, static_cast<std::uint8_t>(form.version));
    append(cie, std::as_bytes(std::span(form.augmentation.c_str(), form.augmentation.size() + 1)));
    if (form.version >= 4) append(cie, bytes_of({8, 0}));
    append(cie, bytes_of({form.code_alignment, 0x78, 16}));
    if (form.augmentation.starts_with('z')) {
      append_value(cie, static_cast<std::uint8_t>(form.augmentation_data.size()));
      append(cie, form.augmentation_data);
    }
    append(cie, form.instructions);
    return add(cie);
  }

  // `range` is the begin and the size as the CIE's encoding has them.
  void add_fde(std::size_t cie, const Bytes& range, const Bytes& instructions, bool augmented = false) {
    Bytes fde;
    if (eh_frame_) {
      const std::size_t id_at = bytes_.size() + (is_64_bit_ ? 12 : 4);
      append_value(fde, static_cast<std::uint32_t>(id_at - cie));
    } else if (is_64_bit_) {
      append_value(fde, std::uint64_t{cie});
    } else {
      append_value(fde, static_cast<std::uint32_t>(cie));
    }
    append(fde, range);
    if (augmented) append(fde, bytes_of({0}));
    append(fde, instructions);
    add(fde);
  }

  // Where the first pointer of the next entry will lie.
  std::size_t next_pointer() const {
    return bytes_.size() + (is_64_bit_ ? 12 : 4) + (is_64_bit_ && !eh_frame_ ? 8 : 4);
  }

  void terminate() { append_value(bytes_, std::uint32_t{0}); }
  const Bytes& bytes() const { return bytes_; }

 private:
  std::size_t add(Bytes entry) {
    const std::size_t at = bytes_.size();
    while (entry.size() % 8 != 4) entry.push_back(std::byte{0});
    if (is_64_bit_) {
      append_value(bytes_, ~std::uint32_t{0});
      append_value(bytes_, std::uint64_t{entry.size()});
    } else {
      append_value(bytes_, static_cast<std::uint32_t>(entry.size()));
    }
    append(bytes_, entry);
    return at;
  }
  bool eh_frame_;
  bool is_64_bit_;
  Bytes bytes_;
};

template <class T>
Bytes pair_of(T begin, T size) {
  Bytes bytes;
  append_value(bytes, begin);
  append_value(bytes, size);
  return bytes;
}

Bytes absolute(std::uint64_t begin, std::uint64_t size) {
  return pair_of(begin, size);
}

Bytes cfa_offset(unsigned offset) {
  return bytes_of({0x0e, offset});
}

struct Made {
  std::shared_ptr<elf::Module> module;
  std::unique_ptr<unwind::FrameTable> table;
  std::uint64_t text = 0;

  std::int64_t cfa(std::uint64_t offset) const {
    const auto answer = table->row(text + offset);
    return answer.row ? answer.row->cfa_offset : answer.broken ? -2 : -1;
  }
};

// `fill` is given the va of .text and of the table.
Made make(const std::string& name, const std::function<void(Section&, std::uint64_t, std::uint64_t)>& fill,
          bool is_64_bit = false, const std::function<void(Bytes&)>& change = {}) {
  ElfBuilder builder;
  Made made;
  made.text = builder.add_section(".text", SHT_PROGBITS, Bytes(text_size));
  Section section(name == ".eh_frame", is_64_bit);
  fill(section, made.text, made.text + text_size);
  REQUIRE(builder.add_section(name, SHT_PROGBITS, section.bytes()) == made.text + text_size);
  Bytes file = builder.build();
  if (change) change(file);
  made.module = elf::Module::open(std::make_unique<elf::BufferSource>(std::move(file)), "made").module;
  REQUIRE(made.module);
  made.table = std::make_unique<unwind::FrameTable>(*made.module);
  return made;
}

}  // namespace

TEST_CASE("terminators in the middle of a table and overlapping entries") {
  const Made made = make(".eh_frame", [](Section& section, std::uint64_t text, std::uint64_t) {
    const auto cie = section.add_cie({});
    section.add_fde(cie, absolute(text, 0x100), cfa_offset(16));
    section.add_fde(cie, absolute(text + 0x40, 0x10), cfa_offset(24));  // inside of the first
    section.terminate();
    section.terminate();
    const auto second = section.add_cie({});
    section.add_fde(second, absolute(text + 0x200, 0x10), cfa_offset(32));
    section.terminate();
  });
  CHECK(made.cfa(0x3f) == 16);
  CHECK(made.cfa(0x40) == 24);
  CHECK(made.cfa(0x50) == 16);  // behind the inner one
  CHECK(made.cfa(0x100) == -1);
  CHECK(made.cfa(0x20f) == 32);
  CHECK(made.table->functions().size() == 3);
}

TEST_CASE("entries of functions that the linker dropped are passed over") {
  const Made made = make(".eh_frame", [](Section& section, std::uint64_t text, std::uint64_t) {
    const auto cie = section.add_cie({});
    section.add_fde(cie, absolute(0, ~std::uint64_t{0} / 2), cfa_offset(99));
    section.add_fde(cie, absolute(text, 0x10), cfa_offset(16));
  });
  CHECK(made.cfa(0) == 16);
  CHECK(made.cfa(0x10) == -1);
}

TEST_CASE("a table is found without section headers and without search table") {
  const auto strip = [](Bytes& file) {
    Elf64_Ehdr header;
    std::memcpy(&header, file.data(), sizeof header);
    header.e_shoff = header.e_shnum = 0;
    std::memcpy(file.data(), &header, sizeof header);
  };
  const auto fill = [](Section& section, std::uint64_t text, std::uint64_t) {
    const auto cie = section.add_cie({.augmentation = "zR", .augmentation_data = bytes_of({0})});
    section.add_fde(cie, absolute(text, 0x10), cfa_offset(16), true);
    section.add_fde(cie, absolute(text + 0x20, 0x10), cfa_offset(24), true);
    section.terminate();
    const auto next = section.add_cie({.augmentation = "z", .augmentation_data = {}});
    section.add_fde(next, absolute(text + 0x40, 0x10), cfa_offset(32), true);
    section.terminate();
  };
  const Made made = make(".eh_frame", fill, false, strip);
  CHECK(made.module->sections().empty());
  CHECK(made.cfa(0) == 16);
  CHECK(made.cfa(0x2f) == 24);
  CHECK(made.cfa(0x40) == 32);
  CHECK(made.cfa(0x10) == -1);
}

TEST_CASE("an unsorted search table is not believed") {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(text_size));
  Section section(true);
  const auto cie = section.add_cie({});
  std::vector<std::size_t> positions;
  for (unsigned i = 0; i < 4; ++i) {
    positions.push_back(section.size());
    section.add_fde(cie, absolute(text + 0x100 * i, 0x80), cfa_offset(16 + 8 * i));
  }
  const auto frames = builder.add_section(".eh_frame", SHT_PROGBITS, section.bytes());
  const auto header_va = (frames + section.size() + 15) / 16 * 16;
  Bytes header = bytes_of({1, 0xff, 0x03, 0x3b});
  append_value(header, std::uint32_t{4});
  for (const unsigned i : {3u, 1u, 0u, 2u}) {
    append_value(header, static_cast<std::int32_t>(text + 0x100 * i - header_va));
    append_value(header, static_cast<std::int32_t>(frames + positions[i] - header_va));
  }
  REQUIRE(builder.add_section(".eh_frame_hdr", SHT_PROGBITS, header) == header_va);
  builder.set_eh_frame_header(header_va, header.size());
  const auto module = elf::Module::open(std::make_unique<elf::BufferSource>(builder.build()), "made").module;
  unwind::FrameTable table(*module);
  for (unsigned i = 0; i < 4; ++i) {
    CAPTURE(i);
    REQUIRE(table.row(text + 0x100 * i + 0x10).row);
    CHECK(table.row(text + 0x100 * i + 0x10).row->cfa_offset == 16 + 8 * i);
  }
  CHECK_FALSE(table.row(text + 0x90).row);
}

TEST_CASE("versions and formats of .debug_frame") {
  for (const unsigned version : {1u, 3u, 4u}) {
    for (const bool is_64_bit : {false, true}) {
      CAPTURE(version);
      CAPTURE(is_64_bit);
      const Made made = make(
          ".debug_frame",
          [&](Section& section, std::uint64_t text, std::uint64_t) {
            const auto cie = section.add_cie({.version = version});
            section.add_fde(cie, absolute(text + 0x10, 0x20), bytes_of({0x44, 0x0e, 32}));
          },
          is_64_bit);
      CHECK(made.cfa(0x10) == 8);
      CHECK(made.cfa(0x14) == 32);
      CHECK(made.cfa(0x30) == -1);
    }
  }
  const Made newer = make(".debug_frame", [&](Section& section, std::uint64_t text, std::uint64_t) {
    section.add_fde(section.add_cie({.version = 5}), absolute(text, 0x20), {});
  });
  CHECK(newer.cfa(0) == -1);
}

TEST_CASE(".eh_frame entries of 64-bit length") {
  const Made made = make(
      ".eh_frame",
      [](Section& section, std::uint64_t text, std::uint64_t) {
        section.add_fde(section.add_cie({}), absolute(text, 0x20), cfa_offset(40));
      },
      true);
  CHECK(made.cfa(0) == 40);
}

TEST_CASE("a compressed .debug_frame is unpacked" * doctest::skip(!elf::can_unpack_zlib()) *
          doctest::description("built without zlib")) {
#ifdef HT_HAVE_ZLIB
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(text_size));
  Section section(false);
  section.add_fde(section.add_cie({.version = 3}), absolute(text, 0x20), cfa_offset(48));
  uLongf size = ::compressBound(section.size());
  Bytes packed(size);
  REQUIRE(::compress(reinterpret_cast<Bytef*>(packed.data()), &size,
                     reinterpret_cast<const Bytef*>(section.bytes().data()), section.size()) == Z_OK);
  packed.resize(size);
  Elf64_Chdr head{};
  head.ch_type = ELFCOMPRESS_ZLIB;
  head.ch_size = section.size();
  const auto open = [&](const Bytes& bytes) {
    ElfBuilder copy = builder;
    copy.add_section(".debug_frame", SHT_PROGBITS, bytes, 0, SHF_COMPRESSED);
    return elf::Module::open(std::make_unique<elf::BufferSource>(copy.build()), "made").module;
  };
  Bytes contents;
  append_value(contents, head);
  append(contents, packed);
  const auto module = open(contents);
  unwind::FrameTable table(*module);
  REQUIRE(table.row(text).row);
  CHECK(table.row(text).row->cfa_offset == 48);

  head.ch_size = std::uint64_t{1} << 40;  // what no stream of this size can hold
  Bytes lies;
  append_value(lies, head);
  append(lies, packed);
  const auto lying = open(lies);
  CHECK_FALSE(unwind::FrameTable(*lying).row(text).row);
  contents[sizeof head + 4] ^= std::byte{0xff};
  const auto damaged = open(contents);
  CHECK_FALSE(unwind::FrameTable(*damaged).row(text).row);
#endif
}

TEST_CASE("augmentations") {
  const auto with = [](const CieForm& form, bool augmented = true) {
    return make(".eh_frame", [&](Section& section, std::uint64_t text, std::uint64_t) {
      section.add_fde(section.add_cie(form), absolute(text, 0x20), cfa_offset(16), augmented);
    });
  };
  CHECK(with({.augmentation = "zR", .augmentation_data = bytes_of({0x04})}).cfa(0) == 16);
  CHECK(
      with({.augmentation = "zPLR", .augmentation_data = bytes_of({0x9b, 1, 2, 3, 4, 0x1b, 0x00})}).cfa(0) ==
      16);
  CHECK(with({.augmentation = "zB", .augmentation_data = {}}).cfa(0) == 16);
  CHECK(with({.augmentation = "zRG", .augmentation_data = bytes_of({0})}).cfa(0) == 16);
  const Made signal = with({.augmentation = "zRS", .augmentation_data = bytes_of({0})});
  REQUIRE(signal.table->row(signal.text).row);
  CHECK(signal.table->row(signal.text).row->signal_frame);
  // The personality's address begins at the next multiple of 8: 17 bytes after the length field.
  Bytes aligned = bytes_of({0x50});
  const std::size_t data_at = 4 + 4 + 1 + 4 + 3 + 1 + 1;  // of the byte after the encoding
  append(aligned, Bytes((8 - data_at % 8) % 8));
  append(aligned, Bytes(8));
  append(aligned, bytes_of({0x00}));
  CHECK(with({.augmentation = "zPR", .augmentation_data = aligned}).cfa(0) == 16);
  CHECK(with({.augmentation = "zQ", .augmentation_data = bytes_of({0})}).cfa(0) == -1);
  CHECK(with({.augmentation = "Q"}, false).cfa(0) == -1);
}

TEST_CASE("encodings of code addresses") {
  const auto with = [](unsigned encoding, const std::function<Bytes(std::uint64_t, std::uint64_t)>& range) {
    return make(".eh_frame", [&](Section& section, std::uint64_t text, std::uint64_t section_va) {
      const auto cie = section.add_cie({.augmentation = "zR", .augmentation_data = bytes_of({encoding})});
      section.add_fde(cie, range(text, section_va + section.next_pointer()), cfa_offset(16), true);
    });
  };
  CHECK(with(0x1b,
             [](auto text, auto at) {  // pcrel sdata4
               return pair_of<std::int32_t>(static_cast<std::int32_t>(text - at), 0x20);
             })
            .cfa(0x1f) == 16);
  CHECK(with(0x1c,
             [](auto text, auto at) {  // pcrel sdata8
               return pair_of<std::int64_t>(static_cast<std::int64_t>(text - at), 0x20);
             })
            .cfa(0) == 16);
  CHECK(with(0x03,
             [](auto text, auto) {  // udata4
               return pair_of<std::uint32_t>(static_cast<std::uint32_t>(text), 0x20);
             })
            .cfa(0) == 16);
  CHECK(with(0x33,
             [](auto text, auto) {  // datarel udata4, without search table relative to 0
               return pair_of<std::uint32_t>(static_cast<std::uint32_t>(text), 0x20);
             })
            .cfa(0) == 16);
  CHECK(with(0x22, [](auto, auto) { return pair_of<std::uint16_t>(0x10, 0x20); }).cfa(0x10) ==
        16);  // textrel
  CHECK(with(0x01,
             [](auto text, auto) {  // uleb128
               return bytes_of({0x80 | (static_cast<unsigned>(text) & 0x7f),
                                0x80 | (static_cast<unsigned>(text >> 7) & 0x7f),
                                static_cast<unsigned>(text >> 14), 0x20});
             })
            .cfa(0x1f) == 16);
  CHECK(with(0x4b, [](auto, auto) { return pair_of<std::int32_t>(0, 0x20); }).cfa(0) == -1);  // funcrel
}

TEST_CASE("an indirect code address is read where it points to") {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(text_size));
  Bytes pointer;
  append_value(pointer, text);
  const auto pointer_va = builder.add_section(".data", SHT_PROGBITS, pointer);
  Section section(true);
  const auto cie = section.add_cie({.augmentation = "zR", .augmentation_data = bytes_of({0x80})});
  section.add_fde(cie, absolute(pointer_va, 0x20), cfa_offset(16), true);
  builder.add_section(".eh_frame", SHT_PROGBITS, section.bytes());
  const auto module = elf::Module::open(std::make_unique<elf::BufferSource>(builder.build()), "made").module;
  unwind::FrameTable table(*module);
  CHECK(table.row(text + 0x1f).row);
}

TEST_CASE("code alignment, nested states and every way to advance") {
  const Made made = make(".eh_frame", [](Section& section, std::uint64_t text, std::uint64_t) {
    const auto cie = section.add_cie({.code_alignment = 4});
    section.add_fde(
        cie, absolute(text, text_size),
        bytes_of({0x41, 0x0e, 16,                                       // 0x04
                  0x0a,                                                 // remember 16
                  0x02, 1,    0x0e, 24,                                 // 0x08
                  0x0a,                                                 // remember 24
                  0x03, 1,    0,    0x0e, 32,                           // 0x0c
                  0x0b,                                                 // 24
                  0x04, 1,    0,    0,    0,  0x0b,                     // 0x10: 16
                  0x1d, 1,    0,    0,    0,  0,    0, 0, 0, 0x0e, 40,  // 0x14
                  0x01, 0x80, 0,    0,    0,  0,    0, 0, 0}));  // set_loc, absolute: before the function
  });
  CHECK(made.cfa(0x03) == 8);
  CHECK(made.cfa(0x04) == 16);
  CHECK(made.cfa(0x08) == 24);
  CHECK(made.cfa(0x0c) == 24);  // 32 was dropped at once
  CHECK(made.cfa(0x10) == 16);
  CHECK(made.cfa(0x14) == 40);
}

TEST_CASE("rows hold the expressions that are in force, and no others") {
  const Made made = make(".eh_frame", [](Section& section, std::uint64_t text, std::uint64_t) {
    Bytes instructions;
    for (unsigned i = 0; i < 100; ++i)
      append(instructions, bytes_of({0x0f, 2, 0x77, i, 0x10, 6, 2, 0x76, i, 0x41}));
    append(instructions, bytes_of({0x0a, 0x0c, 7, 8, 0x08, 6, 0x41, 0x0b}));
    section.add_fde(section.add_cie({}), absolute(text, text_size), instructions);
  });
  for (const unsigned at : {0u, 50u, 99u}) {
    const auto row = made.table->row(made.text + at).row;
    REQUIRE(row);
    CHECK(row->expressions.size() == 4);
    CHECK(row->expression(row->cfa_offset, row->cfa_expression_size)[1] == static_cast<std::byte>(at));
    CHECK(row->expression(row->rules[6].value, row->rules[6].size)[1] == static_cast<std::byte>(at));
  }
  const auto plain = made.table->row(made.text + 100).row;
  REQUIRE(plain);
  CHECK(plain->cfa_kind == unwind::CfaKind::register_offset);
  CHECK(plain->expressions.empty());
  const auto restored = made.table->row(made.text + 101).row;
  REQUIRE(restored);
  CHECK(restored->expression(restored->cfa_offset, restored->cfa_expression_size)[1] == std::byte{99});
}

TEST_CASE("instructions of aarch64 are known there only") {
  const auto fill = [](Section& section, std::uint64_t text, std::uint64_t) {
    section.add_fde(section.add_cie({}), absolute(text, 0x20), bytes_of({0x2d, 0x41, 0x2c, 0x0e, 16}));
  };
  CHECK(make(".eh_frame", fill).cfa(0) == -2);
  const Made arm = make(".eh_frame", fill, false, [](Bytes& file) {
    const std::uint16_t machine = EM_AARCH64;
    std::memcpy(file.data() + offsetof(Elf64_Ehdr, e_machine), &machine, sizeof machine);
  });
  CHECK(arm.cfa(0) == 8);
  CHECK(arm.cfa(1) == 16);
}
