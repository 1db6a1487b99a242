#include <doctest/doctest.h>

#include <bit>

#include "fake_python.hpp"
#include "python/objects.hpp"

using namespace hangtrace;
using memory::Address;
using python::Objects;
using python::StrHash;
using tests::FakePython;

namespace {

constexpr StrHash::Secret kSecret{0x0706050403020100, 0x0f0e0d0c0b0a0908};

// By SipHash-2-4, whose published vector for this secret and these 15 bytes proves it.
StrHash hash_function() {
  std::string text;
  for (char i = 0; i < 15; ++i) text += i;
  return StrHash::of(kSecret, text, 0xa129ca6149be45e5).value();
}

// A dict with index slots, as the interpreter fills them.
struct Indexed {
  FakePython fake;
  Address keys = 0;
  Address dict = 0;
  unsigned log2_slots;
  unsigned log2_width;
  std::vector<Address> names;

  Indexed(int count, int kind, unsigned log2_slots_, unsigned log2_width_)
      : log2_slots(log2_slots_), log2_width(log2_width_) {
    const auto& layout = fake.layout;
    const Address slots = Address{1} << log2_slots;
    const Address words = kind == 0 ? 3 : 2;
    for (int i = 0; i < count; ++i) {
      names.push_back(fake.str(name(i)));
      fake.set(names.back() + static_cast<Address>(layout.string_length) + 8, hash_function()(name(i)));
    }
    const Address indices = static_cast<Address>(layout.keys_indices);
    const Address entries = indices + (slots << log2_width);
    keys = fake.space(entries + 8 * words * static_cast<Address>(count) + 64);
    fake.set8(keys + layout.keys_log2_index_bytes - 1, static_cast<std::uint8_t>(log2_slots));
    fake.set8(keys + layout.keys_log2_index_bytes, static_cast<std::uint8_t>(log2_slots + log2_width));
    fake.set8(keys + layout.keys_kind, static_cast<std::uint8_t>(kind));
    fake.set(keys + layout.keys_entries_used, static_cast<std::uint64_t>(count));
    const std::vector<std::byte> empty(slots << log2_width, std::byte{0xff});
    fake.copy(keys + indices, empty.data(), empty.size());
    std::vector<bool> taken(slots);
    for (int i = 0; i < count; ++i) {
      std::uint64_t perturb = hash_function()(name(i));
      std::uint64_t slot = perturb & (slots - 1);
      while (taken[slot]) {
        perturb >>= 5;
        slot = (slot * 5 + perturb + 1) & (slots - 1);
      }
      taken[slot] = true;
      set_index(slot, i);
      const Address entry = keys + entries + 8 * (words * (static_cast<Address>(i) + 1) - 2);
      fake.set(entry, names[static_cast<std::size_t>(i)]);
      fake.set(entry + 8, value(i));
    }
    dict = fake.object_of("dict", {static_cast<std::uint64_t>(count), 0, keys, 0});
  }

  void set_index(std::uint64_t slot, std::int64_t index) {
    fake.copy(keys + static_cast<Address>(fake.layout.keys_indices) + (slot << log2_width), &index,
              std::size_t{1} << log2_width);
  }
  static std::string name(int i) { return "package.module" + std::to_string(i); }
  static Address value(int i) { return FakePython::kBase + 16 * static_cast<Address>(i + 1); }

  std::optional<std::vector<std::optional<Address>>> look_up(
      std::initializer_list<std::string_view> wanted, std::optional<StrHash::Secret> secret = kSecret) {
    memory::BufferReader reader;
    reader.add(FakePython::kBase, fake.bytes());
    Objects objects(reader, fake.layout, secret);
    const std::vector<std::string_view> list(wanted);
    auto found = objects.look_up(dict, list);
    if (found) CHECK(objects.find(dict, list) == *found);
    return found;
  }
};

using Answer = std::vector<std::optional<Address>>;

}  // namespace

TEST_CASE("hashes of strs are those of the interpreter") {
  constexpr StrHash::Secret zero{};  // PYTHONHASHSEED=0
  const auto of_310 = StrHash::of(zero, "threading", 0xb4b2edb06cddca21);
  REQUIRE(of_310);
  CHECK((*of_310)("asyncio.tasks") == 0x6354f20603aa3ca1);
  const auto of_311 = StrHash::of(zero, "threading", 0xfcfc27a99f1078d4);
  REQUIRE(of_311);
  CHECK((*of_311)("asyncio.tasks") == 0xe241511f2ecb4902);
  CHECK_FALSE(StrHash::of(zero, "threading", 1));
  CHECK_FALSE(StrHash::of(zero, "", 0));
}

TEST_CASE("keys are found by their hashes in tables of every kind") {
  struct Shape {
    int count;
    unsigned log2_slots, log2_width;
  };
  for (const int kind : {0, 1}) {
    for (const Shape shape :
         {Shape{5, 3, 0}, Shape{85, 7, 0}, Shape{1300, 11, 1}, Shape{5, 4, 2}, Shape{5, 4, 3}}) {
      Indexed made(shape.count, kind, shape.log2_slots, shape.log2_width);
      for (int i = 0; i < shape.count; i += 1 + shape.count / 50) {
        const std::string name = Indexed::name(i);
        CHECK(made.look_up({name, "package", "none"}) ==
              Answer{Indexed::value(i), std::nullopt, std::nullopt});
      }
    }
  }
}

TEST_CASE("hashes tell nothing without the secret, or with another one") {
  Indexed made(5, 1, 3, 0);
  CHECK_FALSE(made.look_up({"none"}, std::nullopt));
  CHECK_FALSE(made.look_up({"none"}, StrHash::Secret{1, 2}));
}

TEST_CASE("tables that cannot be are not searched by hashes") {
  const auto& layout = *python::known_layout(11);
  const auto told = [&](int offset, std::uint8_t value) {
    Indexed made(5, 1, 3, 0);
    made.fake.set8(made.keys + static_cast<Address>(offset), value);
    return made.look_up({"none"}).has_value();
  };
  CHECK(told(layout.keys_kind, 1));  // as it was
  CHECK_FALSE(told(layout.keys_log2_index_bytes - 1, 255));
  CHECK_FALSE(told(layout.keys_log2_index_bytes - 1, 0));
  CHECK_FALSE(told(layout.keys_log2_index_bytes, 2));
  CHECK_FALSE(told(layout.keys_log2_index_bytes, 30));
  CHECK_FALSE(told(layout.keys_entries_used, 8));
  CHECK_FALSE(told(layout.keys_kind, 9));
}

TEST_CASE("index slots that cannot be end the search") {
  for (const std::int64_t index : {-2, -3, 5, 127}) {  // deleted everywhere: no end; and no such entry
    Indexed made(5, 1, 3, 0);
    for (std::uint64_t slot = 0; slot < 8; ++slot) made.set_index(slot, index);
    CHECK_FALSE(made.look_up({"none"}));
  }
  Indexed full(5, 1, 3, 0);
  for (std::uint64_t slot = 0; slot < 8; ++slot) full.set_index(slot, 1);
  CHECK_FALSE(full.look_up({"none"}));
  CHECK(full.look_up({Indexed::name(1)}) == Answer{Indexed::value(1)});
}
