#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/objects.hpp"
#include "python/slots.hpp"

// Values of variables that somebody asked for by name, as plain data.
namespace hangtrace::python {

enum class ValueKind { none, boolean, integer, real, text, bytes, list, tuple, dict, deque, object };

struct Value {
  ValueKind kind = ValueKind::object;
  std::int64_t integer = 0;  // also 0 or 1 of a boolean
  double real = 0;
  std::string text;  // at most Objects::kMaxText characters
  // Of bytes, list, tuple, dict and deque. The elements (of a deque none) are there only as far as they are
  // few: `items`, of a dict keys and values in turn.
  std::size_t length = 0;
  std::vector<Value> items;
  std::string type_name;
  Address address = 0;
  // What an object made by pybind11 wraps: the C++ object's address.
  std::optional<Address> held;
};

// How much of a value is read: elements of one container, and values in one answer.
struct ValueLimits {
  std::size_t items = 32;
  std::size_t values = 512;
};

class ValueReader {
 public:
  ValueReader(Objects& objects, Slots& slots, ValueLimits limits = {})
      : objects_(objects), slots_(slots), limits_(limits) {}

  Value read(Address object);
  // Follows "a.b.c" from an object through instance dictionaries and slots; class attributes and properties
  // are not looked at. nullopt: one of them is not there. "": the object itself.
  std::optional<Address> follow(Address object, std::string_view dotted);
  // What the members of a container lead to in the same way, those that lead nowhere left out: a list of at
  // most kMaxMembers. Of a dict its values; of a queue.SimpleQueue what is in it.
  static constexpr std::size_t kMaxMembers = 256;
  Value each(Address container, std::string_view dotted);

 private:
  Value read(Address object, int depth);
  // Members of a list, tuple, set, dict (its values) or SimpleQueue; nullopt: it is none of these.
  std::optional<std::vector<Address>> members(Address container);
  std::vector<Address> simple_queue(Address object) const;
  void add_items(Value& value, const std::vector<Address>& items, int depth);
  std::optional<Address> held(Address object, Address type);

  Objects& objects_;
  Slots& slots_;
  ValueLimits limits_;
  std::size_t budget_ = 0;
};

}  // namespace hangtrace::python
