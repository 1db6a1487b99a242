// ELF files: headers, notes, symbols, compressed parts, unwind tables.
#include <filesystem>

#include "elf/module.hpp"
#include "elf/symbols.hpp"
#include "tests/fuzz/harness.hpp"
#include "unwind/prologue.hpp"
#include "unwind/table_cache.hpp"

#ifdef HT_HAVE_LZMA
#include <lzma.h>
#endif
#ifdef HT_HAVE_ZLIB
#include <zlib.h>
#endif

namespace hangtrace::tests {

namespace {

Bytes with_symbols() {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x100, std::byte{0x90}));
  builder.add_symbols({{"_ZN4gloo7barrierERNS_14BarrierOptionsE", text, 0x20},
                       {"main@@VERS_1", text + 0x20, 0},
                       {"_PyRuntime", text + 0x80, 8, STT_OBJECT}});
  return builder.build();
}

Bytes packed_symbols() {
#ifdef HT_HAVE_LZMA
  const Bytes inner = with_symbols();
  Bytes packed(inner.size() + 4096);
  std::size_t size = 0;
  if (::lzma_easy_buffer_encode(
          0, LZMA_CHECK_NONE, nullptr, reinterpret_cast<const std::uint8_t*>(inner.data()), inner.size(),
          reinterpret_cast<std::uint8_t*>(packed.data()), &size, packed.size()) != LZMA_OK)
    fuzz_failure("lzma");
  packed.resize(size);
  return packed;
#else
  return {};
#endif
}

Bytes packed_frames(const Bytes& frames) {
  Bytes section;
#ifdef HT_HAVE_ZLIB
  Elf64_Chdr head{};
  head.ch_type = ELFCOMPRESS_ZLIB;
  head.ch_size = frames.size();
  append_value(section, head);
  uLongf size = ::compressBound(frames.size());
  Bytes packed(size);
  if (::compress(reinterpret_cast<Bytef*>(packed.data()), &size,
                 reinterpret_cast<const Bytef*>(frames.data()), frames.size()) != Z_OK)
    fuzz_failure("zlib");
  packed.resize(size);
  append(section, packed);
#else
  append(section, frames);
#endif
  return section;
}

Bytes with_everything() {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x300, std::byte{0x90}));
  Bytes note;
  for (const std::uint32_t word : {4u, 20u, 3u}) append_value(note, word);
  append(note, std::as_bytes(std::span("GNU", 4)));
  note.resize(note.size() + 20, std::byte{0xab});
  builder.add_section(".note.gnu.build-id", SHT_NOTE, note);
  EhFrameBuilder frames(bytes_of({0x0c, 7, 8, 0x90, 1}), "z");
  const std::size_t first = frames.build().size() - 4;
  for (unsigned i = 0; i < 3; ++i) {
    frames.add_fde(text + 0x100 * i, 0x80,
                   bytes_of({0x41, 0x0e, 16, 0x0a, 0x0f, 3, 0x77, 8, 6, 0x41, 0x0b, 0x10, 6, 2, 0x76, 0}),
                   true);
  }
  const auto section = builder.add_section(".eh_frame", SHT_PROGBITS, frames.build());
  const auto header_va = (section + frames.build().size() + 15) / 16 * 16;
  Bytes header = bytes_of({1, 0x1b, 0x03, 0x3b});
  append_value(header, static_cast<std::int32_t>(section - (header_va + 4)));
  append_value(header, std::uint32_t{1});
  append_value(header, static_cast<std::int32_t>(text - header_va));
  append_value(header, static_cast<std::int32_t>(section + first - header_va));
  builder.add_section(".eh_frame_hdr", SHT_PROGBITS, header);
  builder.set_eh_frame_header(header_va, header.size());
  Bytes debug;
  append_value(debug, std::uint32_t{16});
  append_value(debug, std::uint32_t{0xffffffff});
  append(debug, bytes_of({4, 0, 8, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1}));
  builder.add_section(".debug_frame", SHT_PROGBITS, packed_frames(debug), 0, SHF_COMPRESSED);
  if (const Bytes packed = packed_symbols(); !packed.empty())
    builder.add_section(".gnu_debugdata", SHT_PROGBITS, packed);
  builder.add_symbols({{"inner", text, 0x80}, {"outer", text + 0x100, 0x40}}, SHT_DYNSYM);
  builder.add_symbols({{"inner", text, 0x80}, {"local", text + 0x200, 0, STT_FUNC, STB_LOCAL}});
  return builder.build();
}

// As much work as a table can ask for: every FDE has a CIE of its own, as long as CIEs may be, and all of
// these lie over each other.
Bytes greedy_entries() {
  constexpr std::uint32_t count = 3000;
  constexpr std::uint32_t long_cie = 60 << 10;
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x300, std::byte{0x90}));
  Bytes frames;
  append_value(frames, count * 20 + 4);
  append_value(frames, std::uint32_t{0});
  for (std::uint32_t i = 0; i < count; ++i) {
    append_value(frames, long_cie);
    append_value(frames, std::uint32_t{0});
    append(frames, bytes_of({1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x0a, 0x0b, 0, 0}));
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    append_value(frames, std::uint32_t{20});
    append_value(frames, static_cast<std::uint32_t>(frames.size()) - (8 + i * 20));
    append_value(frames, std::uint64_t{text});
    append_value(frames, std::uint64_t{0x100});
  }
  frames.resize(frames.size() + 2 * long_cie);
  builder.add_section(".eh_frame", SHT_PROGBITS, frames);
  return builder.build();
}

// One function with more instructions than any compiler writes, each of which copies all there is.
Bytes greedy_instructions() {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x300, std::byte{0x90}));
  EhFrameBuilder frames(bytes_of({0x0c, 7, 8, 0x90, 1}));
  Bytes instructions;
  for (int i = 0; i < 500; ++i) {
    append(instructions, bytes_of({0x10, 6, 100}));
    append(instructions, Bytes(100, std::byte{0x96}));
  }
  while (instructions.size() < 60 << 10) append(instructions, bytes_of({0x0a, 0x0b}));
  frames.add_fde(text, 0x300, instructions);
  builder.add_section(".eh_frame", SHT_PROGBITS, frames.build());
  return builder.build();
}

// All sections have the longest name, and every string is one that is asked for.
Bytes greedy_names() {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x300, std::byte{0x90}));
  builder.add_symbols({{"main", text, 0x300}});
  Bytes strings;
  while (strings.size() < 256 << 10) append(strings, std::as_bytes(std::span("main")));
  builder.add_section(".dynstr", SHT_STRTAB, strings);
  builder.add_section(".dynsym", SHT_DYNSYM, Bytes(sizeof(Elf64_Sym)), 4);
  for (int i = 0; i < 9000; ++i) builder.add_section("", SHT_NULL, {});
  const std::string longest(512 << 10, 'x');
  builder.add_section(longest, SHT_NULL, {});
  Bytes file = builder.build();
  Elf64_Ehdr header;
  std::memcpy(&header, file.data(), sizeof header);
  for (std::size_t i = 6; i < header.e_shnum; ++i) {
    const std::uint32_t name = 9100;  // behind the others: into the long one
    std::memcpy(&file[header.e_shoff + i * sizeof(Elf64_Shdr)], &name, sizeof name);
  }
  return file;
}

}  // namespace

std::vector<Bytes> fuzz_seeds() {
  Bytes arm = with_everything();
  const std::uint16_t machine = EM_AARCH64;
  std::memcpy(arm.data() + offsetof(Elf64_Ehdr, e_machine), &machine, sizeof machine);
  // The made ones are small and hold everything: most inputs come from them.
  std::vector<Bytes> seeds{greedy_entries(), greedy_instructions(), greedy_names()};
  for (int i = 0; i < 20; ++i) {
    seeds.push_back(with_everything());
    seeds.push_back(arm);
    seeds.push_back(with_symbols());
  }
  return seeds;
}

std::vector<std::string> fuzz_files() {
  std::vector<std::string> files{"/proc/self/exe"};
  for (const char* directory : {"/usr/lib/x86_64-linux-gnu", "/usr/aarch64-linux-gnu/lib", "/usr/lib64"}) {
    std::error_code error;
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
      if (entry.is_regular_file(error) && entry.path().string().find(".so") != std::string::npos)
        found.push_back(entry.path());
    }
    std::ranges::sort(found);
    for (std::size_t i = 0; i < found.size(); i += 1 + found.size() / 40) files.push_back(found[i]);
  }
  return files;
}

void fuzz_one(std::span<const std::byte> input) {
  const auto opened =
      elf::Module::open(std::make_unique<elf::BufferSource>(Bytes(input.begin(), input.end())), "input");
  if (!opened.module) {
    promise(!opened.problem.empty(), "a file is refused and nobody knows why");
    return;
  }
  elf::Module& module = *opened.module;
  promise(module.build_id().size() <= 64, "a build id that is none");
  module.build_id_hex();
  std::vector<elf::SymbolQuery> queries;
  unwind::FrameTable table(module);
  for (const elf::Segment& segment :
       std::span(module.segments()).first(std::min<std::size_t>(module.segments().size(), 16))) {
    for (const std::uint64_t offset :
         {std::uint64_t{0}, std::uint64_t{0x45}, segment.file_size / 2, segment.file_size - 1}) {
      const memory::Address va = segment.va + offset;
      queries.push_back({&module, va});
      const auto function = table.function(va);
      const auto row = table.row(va).row;
      promise(!row || (va >= row->begin && va < row->end), "a row of another function");
      if (function) unwind::read_prologue(module, function->begin, va, function->end);
    }
  }
  for (const elf::Symbol* symbol : elf::symbolize(queries))
    promise(symbol == nullptr || !symbol->name.empty(), "a symbol without name");
  const std::string_view names[] = {"_PyRuntime", "main", "outer", ""};
  elf::find_symbols(module, names);
  for (const elf::Section& section :
       std::span(module.sections()).first(std::min<std::size_t>(module.sections().size(), 64)))
    module.section_bytes(section, 1 << 20);
}

}  // namespace hangtrace::tests
