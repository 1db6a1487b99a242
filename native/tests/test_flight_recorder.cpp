#include <doctest/doctest.h>

#include <functional>

#include "tests/recorder_image.hpp"
#include "torch/flight_recorder.hpp"

namespace {

using namespace hangtrace;
using tests::MadeOperation;
using tests::RecorderImage;
using torch::Outcome;

torch::Recording read(const RecorderImage& image,
                      const torch::Wanted& wanted = {.all = true, .frames = true}) {
  return torch::read_recorder(image.memory, RecorderImage::instance, wanted);
}

MadeOperation operation(std::uint64_t id, bool retired = false) {
  MadeOperation made;
  made.id = id;
  made.collective = id + 1;
  made.retired = retired;
  return made;
}

std::vector<std::uint64_t> ids(const torch::Recording& recording) {
  std::vector<std::uint64_t> result;
  for (const auto& each : recording.operations) result.push_back(each.id);
  return result;
}

using Ids = std::vector<std::uint64_t>;

// Goes on with the recorder while it is read: `act` is called before each read of its head.
class Moving final : public memory::Reader {
 public:
  Moving(RecorderImage& image, std::function<void(int)> act) : image_(image), act_(std::move(act)) {}
  std::vector<bool> read_batch(std::span<const memory::Piece> pieces) const override {
    if (pieces.size() == 1 && pieces[0].from == RecorderImage::recorder && pieces[0].into.size() > 1) {
      act_(heads_++);
    }
    return image_.memory.read_batch(pieces);
  }

 private:
  RecorderImage& image_;
  std::function<void(int)> act_;
  mutable int heads_ = 0;
};

const torch::RecorderLayout& newest() {
  return torch::known_layouts().front();
}

}  // namespace

TEST_CASE("all of an operation is read, in every layout") {
  for (const torch::RecorderLayout& layout : torch::known_layouts()) {
    CAPTURE(layout.name);
    RecorderImage image(layout);
    MadeOperation made = operation(0);
    made.pg_id = 7;
    made.group = "d2a84f4b8b650937ec8f73cd8be2c74add5a911b";
    made.description = "tp";
    made.name = "nccl:_all_gather_base";
    made.inputs = {{16, 4, 2, 3, 5}, {}, {9}, {1}, {1}};
    made.outputs = {{80, 4, 2, 3, 5}};
    made.dtype = 15;
    made.frames = {{0x5000, 24}, {0x6000, 6}};
    image.set({made, operation(1, true)}, 2000, 2, 2);
    image.set_status({{7, 2, 1, -1}, {9, 0, -1, -1}, {12, 5, 5, 5}});
    image.set_ranks("d2a84f4b8b650937ec8f73cd8be2c74add5a911b", "tp", {2, 3});
    image.set_library_version("2.27.3 of a long build");
    const auto found = read(image);
    REQUIRE(found.outcome == Outcome::read);
    CHECK(found.layout == &layout);
    CHECK(found.most == 2000);
    CHECK(found.recorded == 2);
    CHECK(found.whole);
    REQUIRE(ids(found) == Ids{0, 1});
    const torch::RecordedOperation& first = found.operations[0];
    CHECK(first.pg_id == 7);
    CHECK(first.group == made.group);
    CHECK(first.description == "tp");
    CHECK(first.name == "nccl:_all_gather_base");
    CHECK(first.collective == 1);
    CHECK(first.op_id == 1);
    CHECK(first.created == 1700000000000000000);
    CHECK(first.timeout_ms == 1800000);
    CHECK(first.thread_name == "python3");
    CHECK(first.thread_id == 0x7f00);
    CHECK(first.inputs == made.inputs);
    CHECK(first.outputs == made.outputs);
    CHECK(first.input_dtypes == std::vector<std::uint8_t>(5, 15));
    CHECK(first.output_dtypes == std::vector<std::uint8_t>{15});
    CHECK(!first.retired);
    CHECK(!first.started);
    CHECK(!first.completed);
    CHECK(!first.duration_ms);
    REQUIRE(first.frames.size() == 2);
    CHECK(first.frames[1].code == 0x6000);
    CHECK(first.frames[1].instruction == 6);
    CHECK(found.operations[1].retired);
    REQUIRE(found.status.size() == 3);
    CHECK(found.status[1].pg_id == 9);
    CHECK(found.status[0].started == 1);
    REQUIRE(found.ranks.size() == 1);
    CHECK(found.ranks[0].name == made.group);
    CHECK(found.ranks[0].ranks == std::vector<std::uint64_t>{2, 3});
    CHECK(found.library_version == "2.27.3 of a long build");
  }
}

TEST_CASE("types have c10's names") {
  CHECK(torch::dtype_name(6) == "Float");
  CHECK(torch::dtype_name(15) == "BFloat16");
  CHECK(torch::dtype_name(24) == "Float8_e4m3fn");
  CHECK(torch::dtype_name(45) == "Float4_e2m1fn_x2");
  CHECK(torch::dtype_name(200).empty());
}

TEST_CASE("a ring that has gone round begins where it goes on") {
  RecorderImage image(newest());
  image.set({operation(3), operation(1, true), operation(2, true)}, 3, 1, 4);
  const auto found = read(image);
  CHECK(ids(found) == Ids{1, 2, 3});
  CHECK(!found.whole);
}

TEST_CASE("what was recorded before a reset is no part of it") {
  RecorderImage image(newest());
  MadeOperation second = operation(0);
  second.epoch = 1;
  image.set({operation(0), operation(1), second}, 2000, 3, 1, 1);
  auto found = read(image);
  CHECK(found.outcome == Outcome::read);
  CHECK(ids(found) == Ids{0});
  CHECK(found.operations[0].collective == second.collective);
  CHECK(!found.whole);
  // None since.
  image.set({operation(0), operation(1)}, 2000, 2, 0, 1);
  found = read(image);
  CHECK(found.outcome == Outcome::read);
  CHECK(found.operations.empty());
}

TEST_CASE("of each group what has not ended matters, and the last one") {
  RecorderImage image(newest());
  MadeOperation other = operation(2);
  other.pg_id = 7;
  MadeOperation message = operation(3, true);
  message.is_p2p = true;
  MadeOperation last = operation(4, true);
  image.set({operation(0, true), operation(1), other, message, last, operation(5, true)}, 2000, 6, 6);
  CHECK(ids(read(image, {})) == Ids{1, 2, 3, 5});
  std::vector<MadeOperation> open;
  for (std::uint64_t id = 0; id < 50; ++id) open.push_back(operation(id));
  image.set(open, 2000, 50, 50);
  const auto found = ids(read(image, {.most_open = 3}));
  CHECK(found == Ids{0, 1, 2, 49});
}

TEST_CASE("one that is off, empty, not made or not readable") {
  RecorderImage image(newest());
  auto found = read(image);
  CHECK(found.outcome == Outcome::read);
  CHECK(found.operations.empty());
  CHECK(found.whole);
  image.set({}, 0, 0, 0);
  image.set_enabled(false);
  CHECK(read(image).outcome == Outcome::off);
  image.memory.add_value(RecorderImage::instance, memory::Address{0});
  CHECK(read(image).outcome == Outcome::never_made);
  image.memory.add_value(RecorderImage::instance, memory::Address{0x66660000});
  CHECK(read(image).outcome == Outcome::unreadable);
  CHECK(torch::read_recorder(memory::BufferReader(), 0x1000, {}).outcome == Outcome::unreadable);
}

TEST_CASE("a layout that is not known is not read") {
  torch::RecorderLayout changed = newest();
  SUBCASE("larger entries") {
    changed.entry.size = 528;
  }
  SUBCASE("as large, with the names elsewhere") {
    changed.entry.name = 24;
    changed.entry.description = 112;
  }
  SUBCASE("as large, with the ids elsewhere") {
    changed.entry.id = 8;
    changed.entry.epoch = 0;
  }
  SUBCASE("the sizes elsewhere") {
    changed.entry.sizes = 376;
  }
  SUBCASE("the ring elsewhere") {
    changed.ring = 64;
    changed.epoch = 112;
  }
  RecorderImage image(changed);
  std::vector<MadeOperation> operations;
  for (std::uint64_t id = 0; id < 63; ++id) operations.push_back(operation(id));
  image.set(operations, 2000, 63, 63);
  CHECK(read(image).outcome == Outcome::unknown_layout);
}

TEST_CASE("what is written meanwhile is left out, and the rest holds") {
  RecorderImage image(newest());
  image.set({operation(3), operation(4), operation(2)}, 3, 2, 5);
  SUBCASE("written over while it was read") {
    const Moving memory(image, [&](int head) {
      if (head != 1) return;
      image.put_entry(2, operation(5));
      image.set_numbers(0, 6);
    });
    const auto found = torch::read_recorder(memory, RecorderImage::instance, {.all = true});
    REQUIRE(found.outcome == Outcome::read);
    // The next one may have been in the middle of it.
    CHECK(ids(found) == Ids{4});
    CHECK(!found.whole);
  }
  SUBCASE("written over before its slots were read") {
    // The head is read once for each layout that is tried; then its slots, then the head again.
    const Moving memory(image, [&](int head) {
      if (head != 1) return;
      image.set_numbers(0, 6);
    });
    image.put_entry(2, operation(5));
    const auto found = torch::read_recorder(memory, RecorderImage::instance, {.all = true});
    REQUIRE(found.outcome == Outcome::read);
    CHECK(ids(found) == Ids{4});
  }
  SUBCASE("somebody is writing") {
    image.set_held(true);
    MadeOperation half = operation(2);
    half.name = "";
    image.put_entry(2, half);
    const auto found = read(image);
    REQUIRE(found.outcome == Outcome::read);
    CHECK(ids(found) == Ids{3, 4});
  }
  SUBCASE("somebody is writing, and has counted the slot but not the operation") {
    image.set_held(true);
    image.put_entry(2, operation(5));
    image.set_numbers(0, 5);
    CHECK(ids(read(image)) == Ids{3, 4});
  }
  SUBCASE("all of it is written over each time") {
    std::uint64_t count = 5;
    const Moving memory(image, [&](int) {
      count += 3;
      for (std::uint64_t slot = 0; slot < 3; ++slot) {
        image.put_entry(slot, operation(count - 3 + (slot + 1) % 3));
      }
      image.set_numbers(2, count);
    });
    CHECK(torch::read_recorder(memory, RecorderImage::instance, {}).outcome == Outcome::moving);
  }
  SUBCASE("it is quiet the second time") {
    const Moving memory(image, [&](int head) {
      if (head != 1) return;
      image.set({operation(6), operation(7), operation(5)}, 3, 2, 8);
    });
    const auto found = torch::read_recorder(memory, RecorderImage::instance, {.all = true});
    CHECK(found.outcome == Outcome::read);
    CHECK(ids(found) == Ids{5, 6, 7});
  }
}

TEST_CASE("a ring that grows meanwhile keeps what was there") {
  RecorderImage image(newest());
  image.set({operation(0), operation(1)}, 2000, 2, 2);
  const Moving memory(image, [&](int head) {
    if (head == 1) image.set_numbers(3, 3);
  });
  const auto found = torch::read_recorder(memory, RecorderImage::instance, {.all = true});
  CHECK(found.outcome == Outcome::read);
  CHECK(ids(found) == Ids{0, 1});
}
