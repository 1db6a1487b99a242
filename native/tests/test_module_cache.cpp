#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "elf/module_cache.hpp"
#include "elf/process_modules.hpp"
#include "elf/same_file.hpp"
#include "elf/symbols.hpp"
#include "memory/buffer_reader.hpp"
#include "memory/process_reader.hpp"
#include "tests/elf_builder.hpp"
#include "tests/fake_proc.hpp"

using namespace hangtrace;
using namespace hangtrace::tests;

namespace {

Bytes program(std::string_view symbol, unsigned fill, unsigned id = 1) {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x4000, static_cast<std::byte>(fill)));
  Bytes note;
  append_value(note, std::uint32_t{4});
  append_value(note, std::uint32_t{4});
  append_value(note, std::uint32_t{NT_GNU_BUILD_ID});
  append(note, bytes_of({'G', 'N', 'U', 0, 0xab, 0xcd, 0x01, id}));
  builder.add_section(".note.gnu.build-id", SHT_NOTE, note);
  builder.add_symbols({{std::string(symbol), text, 0x4000}});
  return builder.build();
}

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A recorded process with a whole file mapped, as if on a file system whose inodes tell nothing.
struct Mapped {
  const FakeProc& proc;
  int pid;
  memory::BufferReader memory;
  std::vector<proc::Mapping> mappings;

  Mapped(const FakeProc& fake, int number, const Bytes& content, std::uint64_t inode = 77)
      : proc(fake), pid(number) {
    proc::Mapping mapping;
    mapping.start = 0x7f0000000000;
    Bytes padded = content;
    padded.resize((content.size() + 4095) / 4096 * 4096);
    mapping.end = mapping.start + padded.size();
    mapping.dev_minor = 9;
    mapping.inode = inode;
    mapping.readable = mapping.executable = true;
    mapping.path = "/lib/libwork.so";
    memory.add(mapping.start, padded);
    mappings.push_back(mapping);
  }

  elf::OpenedModule open(elf::ModuleCache& cache) {
    return cache.open(proc.root(), pid, mappings, mappings.front(), memory);
  }
};

std::string name_of(elf::Module& module) {
  const elf::SymbolQuery query{&module, ElfBuilder::base_va + 0x1000};
  const elf::Symbol* symbol = elf::symbolize(std::span(&query, 1)).front();
  return symbol == nullptr ? "" : symbol->name;
}

}  // namespace

TEST_CASE("a file is taken where memory shows that it is the mapped one, and never one put in its place") {
  const FakeProc proc;
  const Bytes original = program("original", 0x90);
  proc.write("5/root/lib/libwork.so", text_of(original));
  Mapped process(proc, 5, original);
  elf::ModuleCache cache;
  const auto opened = process.open(cache);
  REQUIRE(opened.module);
  CHECK(opened.module->bytes().source().size() == original.size());
  CHECK(name_of(*opened.module) == "original");

  // The same name, other code: what is left is memory.
  proc.write("6/root/lib/libwork.so", text_of(program("replaced", 0x91)));
  Mapped other(proc, 6, original, 78);
  const auto from_memory = other.open(cache);
  REQUIRE(from_memory.module);
  CHECK(name_of(*from_memory.module) != "replaced");

  // Other headers (build-id) alone are enough, too, as is text that differs in one page of many.
  const auto holds = [](const Bytes& file, const Mapped& process) {
    return elf::holds_what_is_mapped(elf::BufferSource(file), process.mappings, process.mappings.front(),
                                     process.memory);
  };
  CHECK(holds(original, process));
  CHECK_FALSE(holds(program("original", 0x90, 2), process));
  Bytes changed = original;
  changed[2 * 4096] = std::byte{0x91};
  CHECK_FALSE(holds(changed, process));
  CHECK_FALSE(holds({}, process));
}

TEST_CASE("copies of one file in several containers are one module") {
  const FakeProc proc;
  const Bytes same = program("shared", 0x90);
  elf::ModuleCache cache;
  std::vector<elf::OpenedModule> opened;
  for (int pid = 1; pid <= 3; ++pid) {
    proc.write(std::to_string(pid) + "/root/lib/libwork.so", text_of(same));
    Mapped process(proc, pid, same, static_cast<std::uint64_t>(100 + pid));
    opened.push_back(process.open(cache));
    REQUIRE(opened.back().module);
  }
  CHECK(opened[0].module == opened[1].module);
  CHECK(opened[0].module == opened[2].module);
  CHECK(cache.size() == 1);

  // Equal build-id and size, but not equal: a build-id can be forged or set by hand.
  Bytes forged = same;
  forged.back() = std::byte{1};
  proc.write("9/root/lib/libwork.so", text_of(forged));
  Mapped process(proc, 9, forged, 200);
  const auto other = process.open(cache);
  REQUIRE(other.module);
  CHECK(other.module != opened[0].module);
  CHECK(cache.size() == 2);
}

TEST_CASE("text moved to anonymous memory keeps its names, other code there gets none") {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("moved-" + std::to_string(::getpid()) + ".so");
  const Bytes content = program("moved_function", 0x90);
  std::ofstream(path, std::ios::binary) << text_of(content);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  constexpr std::size_t page = 4096;
  const std::size_t size = (content.size() + page - 1) / page * page;
  auto* base = static_cast<std::byte*>(::mmap(nullptr, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0));
  REQUIRE(base != MAP_FAILED);
  ::close(fd);
  // Its second and third page become anonymous, as by a program that wants its text on huge pages.
  const auto replace = [&](std::size_t which, const std::byte* bytes) {
    void* at = ::mmap(base + which * page, page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    REQUIRE(at != MAP_FAILED);
    std::memcpy(at, bytes, page);
    REQUIRE(::mprotect(at, page, PROT_READ | PROT_EXEC) == 0);
  };
  const auto location = [&](std::size_t which) {
    const memory::ProcessReader reader(::getpid());
    const auto mappings = proc::read_maps("/proc", ::getpid());
    REQUIRE(mappings);
    elf::ModuleCache cache;
    elf::ProcessModules modules(cache, "/proc", ::getpid(), *mappings, reader);
    const auto found = modules.locate_code(reinterpret_cast<elf::Address>(base + which * page + 16));
    REQUIRE(found);
    return found->module == nullptr                               ? std::string()
           : found->va != ElfBuilder::base_va + which * page + 16 ? "wrong bias"
                                                                  : name_of(*found->module);
  };
  replace(1, content.data() + page);
  CHECK(location(1) == "moved_function");
  CHECK(location(2) == "moved_function");  // still the file's own
  const std::vector<std::byte> generated(page, std::byte{0xcc});
  replace(1, generated.data());
  CHECK(location(1) == "");
  ::munmap(base, size);
  std::filesystem::remove(path);
}

TEST_CASE("what is left of a library in memory still names what it exports") {
  // This program's C library as it lies in memory, without the section headers that only the file has.
  const memory::ProcessReader reader(::getpid());
  const auto mappings = proc::read_maps("/proc", ::getpid());
  REQUIRE(mappings);
  const auto here = reinterpret_cast<elf::Address>(&::getpid);
  const proc::Mapping* library = proc::find_mapping(*mappings, here);
  REQUIRE(library != nullptr);
  Bytes image;
  elf::Address start = 0;
  for (const proc::Mapping& part : *mappings) {
    if (part.inode != library->inode || part.writable || !part.readable) continue;
    const std::size_t size = part.end - part.start;
    if (image.size() < part.offset + size) image.resize(part.offset + size);
    REQUIRE(reader.read(part.start, std::span(image).subspan(part.offset, size)));
    if (part.offset == 0) start = part.start;
  }
  REQUIRE(start != 0);
  const auto open = [&](Bytes bytes) {
    return elf::Module::open_image(std::make_unique<elf::BufferSource>(std::move(bytes)), "image", start)
        .module;
  };
  const auto module = open(image);
  REQUIRE(module);
  REQUIRE(module->section(".dynsym") != nullptr);
  CHECK(elf::find_symbol(*module, "getpid") == here - start);
  const elf::SymbolQuery query{module.get(), here - start};
  const elf::Symbol* symbol = elf::symbolize(std::span(&query, 1)).front();
  REQUIRE(symbol != nullptr);
  CHECK(symbol->name == "getpid");

  // Damage to where these tables are found ends in no names, or in other ones, but never outside of the
  // image.
  std::mt19937 random(20240607);
  const std::uint64_t tables = module->section(".dynsym")->offset;
  for (int round = 0; round < 200; ++round) {
    Bytes damaged = image;
    for (int change = 0; change < 8; ++change) {
      const std::size_t at = random() % 2 == 0 ? 64 + random() % 832 : random() % (2 * tables);
      damaged[at] = static_cast<std::byte>(random() % 3 == 0 ? 0xff : random());
    }
    if (const auto broken = open(std::move(damaged))) {
      const elf::SymbolQuery again{broken.get(), here - start};
      elf::symbolize(std::span(&again, 1));
    }
  }
}
