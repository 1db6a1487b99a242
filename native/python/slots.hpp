#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "python/objects.hpp"

// What a type tells of its instances beyond TypeInfo: its bases, and the members that lie at fixed offsets
// (__slots__, and object members of C types).
namespace hangtrace::python {

class Slots {
 public:
  explicit Slots(Objects& objects) : objects_(objects) {}

  void start_look() { offsets_.clear(); }

  // tp_base; nullopt at the end of the chain.
  std::optional<Address> base(Address type) const;
  // Whether `type` is `wanted` or inherits from it first (tp_base, not every base).
  bool inherits(Address type, Address wanted) const;
  // The value in a slot of an object; nullopt: no such slot, or empty.
  std::optional<Address> find(Address object, std::string_view name);

 private:
  std::optional<std::uint32_t> offset(Address type, std::string_view name) const;

  Objects& objects_;
  std::map<std::pair<Address, std::string>, std::optional<std::uint32_t>, std::less<>> offsets_;
};

}  // namespace hangtrace::python
