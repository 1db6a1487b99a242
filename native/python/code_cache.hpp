#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "python/code_tables.hpp"
#include "python/objects.hpp"

namespace hangtrace::python {

struct Code {
  std::string function;
  std::string file;
  int first_line = 0;
  std::size_t named_slots = 0;  // locals, cells and free variables
  std::size_t stack_size = 0;   // 0: not known
  std::vector<std::byte> lines;
  std::vector<std::byte> exceptions;  // since 3.11
  std::vector<Address> name_tuples;   // names of the slots, in their order

  std::int64_t units = 0;  // since 3.11: how many 2-byte units the instructions take

  // Where a frame's instruction field points, in the unit that line() and live_stack() take: the index of a
  // 2-byte code unit (since 3.11), else an offset in bytes; negative before the first instruction. `start`:
  // address of the first instruction of the copy of the code that the frame runs. nullopt: not in there.
  std::optional<std::int64_t> position(const Layout& layout, Address start, std::uint64_t instruction) const;
  int line(const Layout& layout, std::int64_t position) const;
  // Of a frame that runs the code in the object itself; 0 if it does not.
  int line(const Layout& layout, Address code, std::uint64_t instruction) const;
  std::optional<std::size_t> live_stack(std::int64_t position) const {
    return handler_depth(exceptions, position);
  }
};

// Code objects by address. Their immutable parts are read once; each look checks with one batch of reads that
// the addresses still hold the same objects.
class CodeCache {
 public:
  // Makes all of `addresses` known that are code objects.
  void add(Objects& objects, const std::vector<Address>& addresses);
  const Code* find(Address address) const;  // nullptr: not a code object
  void start_look() { checked_.clear(); }

 private:
  struct Entry {
    std::vector<std::byte> fingerprint;
    Code code;
  };
  std::unordered_map<Address, Entry> entries_;
  std::unordered_set<Address> checked_;  // in this look
};

}  // namespace hangtrace::python
