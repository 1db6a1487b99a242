#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <random>

#include "dwarf/line_table.hpp"
#include "dwarf/sections.hpp"
#include "dwarf/source_lines.hpp"
#include "dwarf/unit.hpp"
#include "elf/module.hpp"
#include "elf/symbols.hpp"
#include "tests/elf_builder.hpp"

using namespace hangtrace;
using namespace hangtrace::tests;

namespace {

const std::vector<std::string> samples{HT_LINES_SAMPLES};

Bytes content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::shared_ptr<elf::Module> open_bytes(Bytes bytes) {
  return elf::Module::open(std::make_unique<elf::BufferSource>(std::move(bytes)), "sample").module;
}

dwarf::Deadline in(int milliseconds) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
}

std::vector<elf::Address> code_of(elf::Module& module) {
  const auto begin = elf::find_symbol(module, "sample_outer");
  REQUIRE(begin);
  std::vector<elf::Address> addresses;
  for (elf::Address address = *begin; address < *begin + 64; ++address) addresses.push_back(address);
  return addresses;
}

}  // namespace

TEST_CASE("inlined functions come before the function they are in") {
  for (const std::string& path : samples) {
    const auto module = open_bytes(content(path));
    REQUIRE(module);
    dwarf::DebugInfo info(*module);
    const auto addresses = code_of(*module);
    const auto lines = info.find(addresses, in(10000));
    CHECK(lines.problem.empty());
    std::size_t deepest = 0;
    for (const auto& frames : lines.frames) {
      if (frames.empty()) continue;
      CHECK(frames.back().function == "sample_outer");
      for (const auto& frame : frames) {
        CHECK(frame.file.ends_with("lines_sample.cpp"));
        CHECK(frame.file.front() == '/');
      }
      if (frames.size() > deepest) {
        deepest = frames.size();
        if (deepest == 3) CHECK(frames.front().function == "inner");
      }
    }
    CHECK(deepest == 3);
    CHECK(lines.frames.front().back().line == 18);
  }
}

TEST_CASE("the answer is the same when it is asked for again, or late") {
  const auto module = open_bytes(content(samples.front()));
  REQUIRE(module);
  const auto addresses = code_of(*module);
  dwarf::DebugInfo late(*module);
  const auto nothing = late.find(addresses, in(-1));
  CHECK_FALSE(nothing.problem.empty());
  for (const auto& frames : nothing.frames) CHECK(frames.empty());
  const auto first = late.find(addresses, in(10000));
  const auto second = late.find(addresses, in(10000));
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    REQUIRE(first.frames[i].size() == second.frames[i].size());
    CHECK_FALSE(first.frames[i].empty());
  }
}

TEST_CASE("a file without debug information has no answers and no complaint") {
  ElfBuilder builder;
  const auto text = builder.add_section(".text", SHT_PROGBITS, Bytes(0x100));
  const auto module = open_bytes(builder.build());
  REQUIRE(module);
  const elf::Address address = text + 4;
  const auto lines = dwarf::DebugInfo(*module).find(std::span(&address, 1), in(1000));
  CHECK(lines.problem.empty());
  CHECK(lines.frames.front().empty());
}

TEST_CASE("damaged debug information never breaks the reader, nor keeps it") {
  std::mt19937 random(20240607);
  for (const std::string& path : samples) {
    const Bytes whole = content(path);
    const auto intact = open_bytes(whole);
    REQUIRE(intact);
    const auto addresses = code_of(*intact);
    std::vector<std::pair<std::size_t, std::size_t>> areas;
    for (const elf::Section& section : intact->sections()) {
      if (section.name.starts_with(".debug_") && section.size != 0)
        areas.emplace_back(section.offset, section.size);
    }
    REQUIRE(areas.size() >= 5);
    std::size_t answered = 0;
    for (int round = 0; round < 4000; ++round) {
      Bytes damaged = whole;
      for (int change = 0; change < 4; ++change) {
        const auto& [offset, size] = areas[random() % areas.size()];
        // Beginnings, where headers are, as often as the rest.
        const std::size_t range = random() % 2 == 0 ? std::min<std::size_t>(size, 64) : size;
        damaged[offset + random() % range] = static_cast<std::byte>(random() % 3 == 0 ? 0xff : random());
      }
      const auto module = open_bytes(std::move(damaged));
      REQUIRE(module);
      const auto began = std::chrono::steady_clock::now();
      const auto lines = dwarf::DebugInfo(*module).find(addresses, in(5000));
      CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
      REQUIRE(lines.frames.size() == addresses.size());
      for (const auto& frames : lines.frames) answered += frames.empty() ? 0 : 1;
    }
    CHECK(answered > 1000);  // damage elsewhere does no harm
  }
}

TEST_CASE("a section that is cut short ends the search") {
  const Bytes whole = content(samples.back());
  const auto intact = open_bytes(whole);
  REQUIRE(intact);
  const auto addresses = code_of(*intact);
  for (const char* name :
       {".debug_info", ".debug_abbrev", ".debug_line", ".debug_aranges", ".debug_rnglists"}) {
    const elf::Section* section = intact->section(name);
    if (section == nullptr) continue;
    const std::uint64_t step = std::max<std::uint64_t>(1, section->size / 100);
    for (std::uint64_t size = 0; size < section->size; size += step) {
      Bytes cut = whole;
      // sh_size of the header with this offset, in the table at e_shoff
      Elf64_Ehdr header;
      std::memcpy(&header, cut.data(), sizeof header);
      for (unsigned i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr entry;
        std::byte* at = cut.data() + header.e_shoff + i * sizeof entry;
        std::memcpy(&entry, at, sizeof entry);
        if (entry.sh_offset != section->offset || entry.sh_size != section->size) continue;
        entry.sh_size = size;
        std::memcpy(at, &entry, sizeof entry);
      }
      const auto module = open_bytes(std::move(cut));
      REQUIRE(module);
      CHECK(dwarf::DebugInfo(*module).find(addresses, in(5000)).frames.size() == addresses.size());
    }
  }
}
