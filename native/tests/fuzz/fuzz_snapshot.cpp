// Recorded programs (tests/data/unwind) with other registers and another stack.
#include <filesystem>

#include "tests/fuzz/harness.hpp"
#include "tests/snapshot.hpp"

namespace hangtrace::tests {

namespace {

std::vector<std::unique_ptr<Snapshot>>& snapshots() {
  static std::vector<std::unique_ptr<Snapshot>> loaded = [] {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(std::string(HT_TEST_DATA) + "/unwind"))
      paths.push_back(entry.path());
    std::ranges::sort(paths);
    std::vector<std::unique_ptr<Snapshot>> result;
    for (const std::string& path : paths) result.push_back(std::make_unique<Snapshot>(path));
    return result;
  }();
  return loaded;
}

}  // namespace

std::vector<Bytes> fuzz_seeds() {
  std::vector<Bytes> seeds;
  for (std::size_t i = 0; i < snapshots().size(); ++i) {
    for (const unsigned all_registers : {0u, 1u}) {
      Bytes bytes = bytes_of({static_cast<unsigned>(i), all_registers});
      for (unsigned number = 0; number < unwind::max_registers; ++number)
        append_value(bytes, snapshots()[i]->registers().get(number).value_or(0));
      append(bytes, snapshots()[i]->stack());
      seeds.push_back(std::move(bytes));
    }
  }
  return seeds;
}

std::vector<std::string> fuzz_files() {
  return {};
}

void fuzz_one(std::span<const std::byte> input) {
  Taker taker(input);
  Snapshot& snapshot = *snapshots()[taker.value<std::uint8_t>() % snapshots().size()];
  const bool all_registers = (taker.value<std::uint8_t>() & 1) != 0;
  unwind::Registers registers = snapshot.pc_sp();
  for (unsigned number = 0; number < unwind::max_registers; ++number) {
    const auto value = taker.value<std::uint64_t>();
    if (all_registers) registers.set(number, value);
  }
  memory::BufferReader memory = snapshot.reader();
  memory.add(snapshot.stack_begin(), taker.bytes(snapshot.stack().size()));
  const CountingReader reader(memory, 64 << 20);
  const unwind::Stack stack = snapshot.unwind(registers, {}, &reader);
  promise(stack.frames.size() <= unwind::Options{}.max_frames, "too many frames");
  for (std::size_t i = 1; i < stack.frames.size(); ++i) {
    const proc::Mapping* mapping =
        proc::find_mapping(snapshot.mappings(), stack.frames[i].va + stack.frames[i].bias);
    promise(mapping != nullptr && mapping->executable, "a frame outside of code");
  }
}

}  // namespace hangtrace::tests
