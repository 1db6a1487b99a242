#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "python/code_tables.hpp"

using namespace hangtrace::python;

namespace {

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value & 0xff));
  return result;
}

// Head of an entry of the locations table: kind, number of code units.
int head(int kind, int units) {
  return 128 | kind << 3 | (units - 1);
}

}  // namespace

TEST_CASE("every form of an entry of the locations table") {
  const auto table = bytes({
      head(13, 1), 2,              // no columns: + 1 line (signed varint 2)
      head(11, 2), 4, 9,           // one line, + 1
      head(5, 1), 0,               // short form, same line
      head(14, 3), 41, 0, 1, 1,    // long form: - 20 (signed varint 41)
      head(15, 8),                 // no line
      head(13, 1), 64 | 0, 1 << 1  // two bytes of varint: 128 -> + 64
  });
  CHECK(line_in_locations(table, 30, -1) == 30);
  CHECK(line_in_locations(table, 30, 0) == 31);
  CHECK(line_in_locations(table, 30, 1) == 32);
  CHECK(line_in_locations(table, 30, 2) == 32);
  CHECK(line_in_locations(table, 30, 3) == 32);
  CHECK(line_in_locations(table, 30, 4) == 12);
  CHECK(line_in_locations(table, 30, 6) == 12);
  CHECK(line_in_locations(table, 30, 7) == 0);
  CHECK(line_in_locations(table, 30, 14) == 0);
  CHECK(line_in_locations(table, 30, 15) == 76);
  CHECK(line_in_locations(table, 30, 16) == 0);  // behind the end
}

TEST_CASE("a damaged locations table gives no line") {
  CHECK(line_in_locations({}, 5, 0) == 0);
  CHECK(line_in_locations(bytes({0x11, 0x22}), 5, 0) == 0);   // not the start of an entry
  CHECK(line_in_locations(bytes({head(14, 1)}), 5, 0) == 5);  // cut short: no change is told
  CHECK(line_in_locations(bytes({head(13, 1), 127, 127, 127, 127, 127, 127, 127}), 5, 0) == 0);
}

TEST_CASE("the ranges of 3.10") {
  const auto table = bytes({4, 1, 2, -128, 0, 9, 6, 1});
  CHECK(line_in_ranges(table, 10, -2) == 10);
  CHECK(line_in_ranges(table, 10, 0) == 11);
  CHECK(line_in_ranges(table, 10, 2) == 11);
  CHECK(line_in_ranges(table, 10, 4) == 0);  // a range without a line
  CHECK(line_in_ranges(table, 10, 6) == 21);
  CHECK(line_in_ranges(table, 10, 12) == 0);
  CHECK(line_in_ranges(bytes({4}), 10, 0) == 10);
}

TEST_CASE("the increments of 3.8 and 3.9") {
  const auto table = bytes({6, 1, 8, 2, 255, 0, 5, -2});
  CHECK(line_in_lnotab(table, 20, -1) == 20);
  CHECK(line_in_lnotab(table, 20, 0) == 20);
  CHECK(line_in_lnotab(table, 20, 6) == 21);
  CHECK(line_in_lnotab(table, 20, 14) == 23);
  CHECK(line_in_lnotab(table, 20, 268) == 23);
  CHECK(line_in_lnotab(table, 20, 274) == 21);
  CHECK(line_in_lnotab({}, 20, 4) == 20);
}

TEST_CASE("the depth that a handler keeps") {
  // {start, size, target, depth << 1 | lasti}; bit 7 marks the first byte of an entry, bit 6 says more
  // follow.
  const auto table = bytes({128 | 4, 6, 20, 2 << 1 | 1, 128 | 64 | 1, 0, 3, 30, 0 << 1});
  CHECK_FALSE(handler_depth(table, -1));
  CHECK_FALSE(handler_depth(table, 3));
  CHECK(handler_depth(table, 4) == 2);
  CHECK(handler_depth(table, 9) == 2);
  CHECK_FALSE(handler_depth(table, 10));
  CHECK(handler_depth(table, 64) == 0);
  CHECK_FALSE(handler_depth(table, 67));
  CHECK_FALSE(handler_depth({}, 0));
}

TEST_CASE("any bytes are taken") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> table(random() % 40);
    for (std::byte& byte : table) byte = static_cast<std::byte>(random());
    for (const std::int64_t at :
         {std::int64_t{-5}, std::int64_t{0}, std::int64_t{17}, std::int64_t{1} << 40}) {
      CHECK(line_in_locations(table, 1, at) >= 0);
      CHECK(line_in_ranges(table, 1, at) >= 0);
      CHECK(line_in_lnotab(table, 1, at) >= 0);
      handler_depth(table, at);
    }
  }
}
