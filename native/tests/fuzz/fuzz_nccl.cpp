// NCCL's communicators, calls and getters over any memory.
#include "memory/buffer_reader.hpp"
#include "nccl/calls.hpp"
#include "nccl/find_layout.hpp"
#include "nccl/magic.hpp"
#include "nccl/search.hpp"
#include "tests/fuzz/harness.hpp"

namespace hangtrace::tests {

namespace {

constexpr memory::Address base = 0x7f0000001000;

// All members within the first kilobyte, so that pointers of the input lead to more of it.
nccl::Layout dense_layout() {
  nccl::Layout layout;
  layout.from = nccl::LayoutFrom::dwarf;
  layout.comm_size = 1024;
  layout.sub_size = 64;
  for (std::size_t i = 0; i < nccl::field_count; ++i) {
    layout.set(static_cast<nccl::Field>(i), i * 8 % 512);
  }
  layout.set(nccl::Field::start_magic, 0);
  layout.set(nccl::Field::end_magic, 0);
  return layout;
}

class AllPages final : public nccl::PresentPages {
 public:
  std::vector<std::pair<memory::Address, memory::Address>> within(memory::Address from,
                                                                  memory::Address to) const override {
    return {{from, to}};
  }
};

Bytes seed(std::uint64_t pointer) {
  const nccl::Layout layout = dense_layout();
  std::vector<std::uint64_t> words(256, pointer);
  const auto put = [&](nccl::Field field, std::uint64_t value) { words[*layout.offset(field) / 8] = value; };
  put(nccl::Field::rank, 1);
  put(nccl::Field::n_ranks, 4);
  put(nccl::Field::cuda_device, 1);
  put(nccl::Field::start_magic, nccl::magic);
  Bytes bytes;
  for (const std::uint64_t word : words) append_value(bytes, word);
  return bytes;
}

}  // namespace

std::vector<Bytes> fuzz_seeds() {
  return {seed(0), seed(base), seed(base + 8), seed(base + 512), seed(0x0000000400000004)};
}

std::vector<std::string> fuzz_files() {
  return {};
}

void fuzz_one(std::span<const std::byte> input) {
  memory::BufferReader memory;
  Bytes bytes(input.begin(), input.end());
  bytes.resize(std::max<std::size_t>(4096, bytes.size() / 4096 * 4096));
  memory.add(base, bytes);
  const CountingReader reader(memory, 64 << 20);
  const AllPages pages;
  proc::Mapping mapping;
  mapping.start = base;
  mapping.end = base + bytes.size();
  mapping.readable = mapping.writable = true;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  nccl::decode(reader, dense_layout(), base, nccl::FoundBy::list);
  for (const nccl::Layout& layout :
       {dense_layout(), nccl::layout_of_fingerprint(true), nccl::layout_of_fingerprint(false)}) {
    const auto found = nccl::search(reader, {mapping}, pages, layout, deadline);
    nccl::call_on_stack(reader, 1, base + 16, found.found, [](memory::Address at) { return at % 3 != 0; });
  }
  nccl::load_displacement(input, true);
  nccl::load_displacement(input, false);
}

}  // namespace hangtrace::tests
