#include <doctest/doctest.h>

#include "fake_python.hpp"
#include "python/callables.hpp"
#include "python/objects.hpp"

using namespace hangtrace;
using memory::Address;
using python::BytesValue;
using python::NoneValue;
using python::Objects;
using python::OpaqueValue;
using python::SimpleValue;
using tests::FakePython;

namespace {

struct Bench {
  explicit Bench(int minor = 11) : fake(*python::known_layout(minor)) {}

  FakePython fake;
  memory::BufferReader reader;
  Objects objects{reader, fake.layout};
  void done() { reader.add(FakePython::kBase, fake.bytes()); }
};

}  // namespace

TEST_CASE("strings of every kind") {
  Bench bench;
  const auto ascii = bench.fake.str("plain");
  const auto empty = bench.fake.str("");
  const auto latin = bench.fake.str("\xe4\xff", 2, 1, false);
  const auto two = bench.fake.str(u"\u2713\u00e4", 2, 2, false);
  const auto four = bench.fake.str(U"\U0001d11ex", 2, 4, false);
  const char16_t lone[] = {0xd800, 'x'};
  const auto surrogate = bench.fake.str(lone, 2, 2, false);
  const auto large = bench.fake.str(std::string(1000, 'a'));
  const auto huge = bench.fake.str(std::string(9000, 'b'));
  bench.done();
  CHECK(bench.objects.text(ascii) == "plain");
  CHECK(bench.objects.text(empty) == "");
  CHECK(bench.objects.text(latin) == "ä\u00ff");
  CHECK(bench.objects.text(two) == "✓ä");
  CHECK(bench.objects.text(four) == "𝄞x");
  CHECK(bench.objects.text(surrogate) == "\ufffdx");
  CHECK(bench.objects.text(large) == std::string(1000, 'a'));
  CHECK(bench.objects.text(huge) == std::string(Objects::kMaxText, 'b'));
}

TEST_CASE("a string whose data lies elsewhere") {
  Bench bench;
  const auto data = bench.fake.space(16);
  bench.fake.copy(data, "subclass", 8);
  const auto text = bench.fake.str("12345678");
  bench.fake.set32(text + bench.fake.layout.string_state, 1 << 2 | 1 << 6);  // one byte, ASCII, not compact
  bench.fake.bytes().resize(bench.fake.bytes().size() + 64);
  bench.fake.set(text + bench.fake.layout.string_compact_data, data);
  bench.done();
  CHECK(bench.objects.text(text) == "subclass");
}

TEST_CASE("strings that cannot be") {
  Bench bench;
  const auto wrong_kind = bench.fake.str("x");
  bench.fake.set32(wrong_kind + bench.fake.layout.string_state, 3 << 2 | 1 << 5);
  const auto negative = bench.fake.str("x");
  bench.fake.set(negative + bench.fake.layout.string_length, ~0ULL);
  const auto wide_ascii = bench.fake.str("x");
  bench.fake.set32(wide_ascii + bench.fake.layout.string_state, 4 << 2 | 1 << 5 | 1 << 6);
  const auto endless = bench.fake.str("x");
  bench.fake.set(endless + bench.fake.layout.string_length, 1ULL << 39);
  bench.done();
  CHECK_FALSE(bench.objects.text(wrong_kind));
  CHECK_FALSE(bench.objects.text(negative));
  CHECK_FALSE(bench.objects.text(wide_ascii));
  CHECK_FALSE(bench.objects.text(endless));  // its characters run out of the memory
  CHECK_FALSE(bench.objects.text(0));
  CHECK_FALSE(bench.objects.text(FakePython::kBase + 4));     // not aligned
  CHECK_FALSE(bench.objects.text(FakePython::kBase - 4096));  // not mapped
}

TEST_CASE("a string at the very end of the memory") {
  Bench bench;
  const auto text = bench.fake.str("end");
  const auto size = static_cast<std::size_t>(bench.fake.layout.string_ascii_data) + 3;
  bench.fake.bytes().resize(text - FakePython::kBase + size);
  bench.done();
  CHECK(bench.objects.text(text) == "end");
}

TEST_CASE("numbers and other values") {
  Bench bench;
  const std::vector<std::int64_t> numbers = {0, 1, -1, 1 << 30, -(1LL << 40), INT64_MAX, -INT64_MAX};
  std::vector<Address> objects;
  for (const auto number : numbers) objects.push_back(bench.fake.integer(number));
  const auto none = bench.fake.object_of("NoneType", {});
  const auto yes = bench.fake.object_of("bool", {1, 1});
  double half = 0.5;
  std::uint64_t raw = 0;
  std::memcpy(&raw, &half, 8);
  const auto real = bench.fake.object_of("float", {raw});
  const auto data = bench.fake.bytes_object("raw");
  const auto other = bench.fake.list({});
  const auto huge = bench.fake.object_of("int", {4, 1, 1});
  bench.done();
  for (std::size_t i = 0; i < numbers.size(); ++i)
    CHECK(bench.objects.value(objects[i]) == SimpleValue(numbers[i]));
  CHECK(bench.objects.value(none) == SimpleValue(NoneValue{}));
  CHECK(bench.objects.value(yes) == SimpleValue(true));
  CHECK(bench.objects.value(real) == SimpleValue(0.5));
  CHECK(bench.objects.value(data) == SimpleValue(BytesValue{"raw"}));
  CHECK(bench.objects.value(other) == SimpleValue(OpaqueValue{"list", other}));
  CHECK(bench.objects.value(huge) == SimpleValue(OpaqueValue{"int", huge}));
  CHECK(bench.objects.value(8) == SimpleValue(OpaqueValue{"", 8}));
}

TEST_CASE("dicts of every kind") {
  Bench bench;
  const auto value = bench.fake.integer(5);
  for (const int kind : {0, 1}) {
    std::vector<std::pair<Address, Address>> items;
    for (int i = 0; i < 600; ++i)
      items.emplace_back(bench.fake.str("key" + std::to_string(i)), value + 16 * i);
    items[3].second = 0;  // deleted
    const auto dict = bench.fake.dict(items, kind);
    bench.done();
    CHECK(bench.objects.dict(dict).size() == 599);
    CHECK(bench.objects.find(dict, "key0") == value);
    CHECK(bench.objects.find(dict, "key599") == value + 16 * 599);
    CHECK_FALSE(bench.objects.find(dict, "key3"));
    CHECK_FALSE(bench.objects.find(dict, "key"));
    CHECK_FALSE(bench.objects.find(dict, "key6000"));
    const std::vector<std::string_view> many = {"key7", "none", "key300"};
    CHECK(bench.objects.find(dict, many) ==
          std::vector<std::optional<Address>>{value + 16 * 7, std::nullopt, value + 16 * 300});
  }
}

TEST_CASE("attributes in shared keys") {
  Bench bench;
  const auto name = bench.fake.str("_name");
  const auto other = bench.fake.str("_other");
  const auto keys = bench.fake.keys({{other, 0}, {name, 0}}, 2);
  const auto type = bench.fake.type("Thread", 1 << 4, keys);
  const auto make = [&](Address value) {
    const auto values = bench.fake.space(16);
    bench.fake.set(values + 8, value);
    const auto before = bench.fake.space(32);  // values and dict lie before the object
    bench.fake.set(before, values);
    return bench.fake.object(type, {});
  };
  const auto first = make(bench.fake.str("one"));
  const auto second = make(bench.fake.str("two"));
  const auto empty = make(0);
  bench.done();
  CHECK(bench.objects.value(bench.objects.attribute(first, "_name").value()) ==
        SimpleValue(std::string("one")));
  CHECK(bench.objects.value(bench.objects.attribute(second, "_name").value()) ==
        SimpleValue(std::string("two")));
  CHECK_FALSE(bench.objects.attribute(empty, "_name"));
  CHECK_FALSE(bench.objects.attribute(first, "_other"));
  CHECK_FALSE(bench.objects.attribute(first, "_none"));
}

TEST_CASE("tables that cannot be") {
  Bench bench;
  const auto one = bench.fake.str("one");
  const auto damaged = [&](int offset, std::uint64_t value, std::size_t size) {
    const auto dict = bench.fake.dict({{one, one}});
    Address keys = 0;
    std::memcpy(&keys, &bench.fake.bytes()[dict + bench.fake.layout.dict_keys - FakePython::kBase], 8);
    if (size == 8) bench.fake.set(keys + offset, value);
    if (size == 1) bench.fake.set8(keys + offset, static_cast<std::uint8_t>(value));
    return dict;
  };
  const auto& layout = bench.fake.layout;
  const std::vector<Address> dicts = {
      damaged(layout.keys_entries_used, 1ULL << 60, 8), damaged(layout.keys_entries_used, ~0ULL, 8),
      damaged(layout.keys_entries_used, 60000, 8),      damaged(layout.keys_log2_index_bytes, 255, 1),
      damaged(layout.keys_log2_index_bytes, 40, 1),     damaged(layout.keys_kind, 9, 1),
  };
  const auto list = bench.fake.object_of("list", {1ULL << 60, one});
  const auto tuple = bench.fake.object_of("tuple", {1ULL << 60});
  bench.done();
  for (const auto dict : dicts) CHECK(bench.objects.dict(dict).empty());
  CHECK(bench.objects.dict(one + 4).empty());
  CHECK(bench.objects.list(list).empty());
  CHECK(bench.objects.tuple(tuple).empty());
}

TEST_CASE("a method on a value stack is bound, or since 3.14 a function with its self above") {
  for (const int minor : {9, 11, 14}) {
    CAPTURE(minor);
    Bench bench(minor);
    FakePython& fake = bench.fake;
    const auto self = fake.integer(7);
    const auto function = fake.object(fake.type("function", 0), std::vector<std::uint64_t>(16));
    fake.set(function + static_cast<Address>(fake.layout.function_name), fake.str("__exit__"));
    const auto bound = fake.object(fake.type("method", 0), {function, self});
    fake.space(4096);  // the types are read as long as they are
    bench.done();
    CHECK(python::function_name(bench.objects, function) == "__exit__");
    CHECK_FALSE(python::function_name(bench.objects, 0));
    const auto method = python::method_on_stack(bench.objects, bound, 0);
    CHECK(method.function == function);
    CHECK(method.self == self);
    const auto apart = python::method_on_stack(bench.objects, function, self);
    CHECK(apart.function == (minor >= 14 ? function : 0));
    CHECK(apart.self == (minor >= 14 ? self : 0));
    CHECK(python::method_on_stack(bench.objects, self, function).function == 0);
  }
}
