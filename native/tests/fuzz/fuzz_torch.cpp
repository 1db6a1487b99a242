// torch's flight recorder over any memory.
#include "memory/page_reader.hpp"
#include "tests/fuzz/harness.hpp"
#include "tests/recorder_image.hpp"
#include "torch/flight_recorder.hpp"

namespace hangtrace::tests {

namespace {

// An input is what lies at these places, one behind the other, and which layout they are of.
struct Region {
  Address from;
  std::size_t size;
};
constexpr Region recorder_bytes{RecorderImage::recorder, 320};
constexpr Region ring_bytes{RecorderImage::ring, 4 * 512};
constexpr Region heap_bytes{RecorderImage::heap, 2048};
constexpr std::array regions = {recorder_bytes, ring_bytes, heap_bytes};

Bytes seed(std::size_t layout, bool gone_round) {
  RecorderImage image(torch::known_layouts()[layout]);
  std::vector<MadeOperation> operations(4);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    operations[i].id = gone_round ? (i == 0 ? 4 : i) : i;
    operations[i].group = "d2a84f4b8b650937ec8f73cd8be2c74add5a911b";
    operations[i].inputs = {{1, 2, 3, 4, 5}, {6, 7, 8}};
    operations[i].frames = {{0x5000, 4}};
  }
  image.set(operations, gone_round ? 4 : 2000, gone_round ? 1 : 4, gone_round ? 5 : 4);
  image.set_status({{0, 4, -1, 3}, {1, 1, 1, 1}});
  image.set_ranks("0", "default_pg", {0, 1, 2, 3});
  Bytes bytes;
  for (const Region& region : regions) {
    for (std::size_t at = 0; at < region.size; ++at) {
      append_value(bytes, image.memory.read_value<std::byte>(region.from + at).value_or(std::byte{0}));
    }
  }
  return bytes;
}

}  // namespace

std::vector<Bytes> fuzz_seeds() {
  return {seed(0, false), seed(0, true), seed(1, false), seed(1, true), seed(2, false)};
}

std::vector<std::string> fuzz_files() {
  return {};
}

void fuzz_one(std::span<const std::byte> input) {
  memory::BufferReader memory;
  Taker taker(input);
  memory.add_value(RecorderImage::instance, RecorderImage::recorder);
  for (const Region& region : regions) {
    const auto part = taker.bytes(region.size);
    Bytes bytes(part.begin(), part.end());
    bytes.resize((region.size + memory::PageReader::page_size - 1) / memory::PageReader::page_size *
                 memory::PageReader::page_size);
    memory.add(region.from, bytes);
  }
  const CountingReader reader(memory, std::uint64_t{64} << 20);
  for (const bool all : {true, false}) {
    const auto found = torch::read_recorder(reader, RecorderImage::instance, {.all = all, .frames = true});
    promise(found.operations.empty() || found.outcome == torch::Outcome::read,
            "operations of what was not read");
    promise(found.operations.size() <= 4, "more operations than the ring has slots");
    for (const torch::RecordedOperation& each : found.operations) {
      promise(each.inputs.size() == each.input_dtypes.size(), "a tensor without a type");
      promise(!each.name.empty(), "an operation without a name");
    }
  }
}

}  // namespace hangtrace::tests
