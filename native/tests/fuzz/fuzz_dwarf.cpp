// Debug information: what compilers write, of several versions, damaged.
#include "dwarf/source_lines.hpp"
#include "dwarf/structures.hpp"
#include "elf/module.hpp"
#include "tests/fuzz/harness.hpp"

namespace hangtrace::tests {

std::vector<Bytes> fuzz_seeds() {
  return {Bytes(64)};
}

std::vector<std::string> fuzz_files() {
  return {HT_DWARF_SEEDS};
}

void fuzz_one(std::span<const std::byte> input) {
  const auto opened =
      elf::Module::open(std::make_unique<elf::BufferSource>(Bytes(input.begin(), input.end())), "input");
  if (!opened.module) return;
  std::vector<memory::Address> addresses;
  for (const elf::Section& section : opened.module->sections()) {
    if (section.name != ".text") continue;
    for (std::uint64_t offset = 0; offset < std::min<std::uint64_t>(section.size, 1024); offset += 5)
      addresses.push_back(section.va + offset);
  }
  dwarf::DebugInfo info(*opened.module);
  const auto found = info.find(addresses, std::chrono::steady_clock::now() + std::chrono::seconds(60));
  promise(found.frames.size() == addresses.size(), "lines of other addresses");
  constexpr std::array<std::string_view, 2> names = {"Point", "*"};
  dwarf::find_structures(*opened.module, names, 4,
                         std::chrono::steady_clock::now() + std::chrono::seconds(60));
}

}  // namespace hangtrace::tests
