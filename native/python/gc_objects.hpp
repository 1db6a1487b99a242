#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "python/objects.hpp"
#include "python/threads.hpp"

// Objects that nothing points to from where one could start to look: found in the garbage collector's lists
// of all containers.
namespace hangtrace::python {

struct FoundObjects {
  std::vector<Address> objects;
  bool complete = false;  // all lists were walked to their ends
  // What the lists looked like: the same ends mean that no container was added or removed at them.
  std::vector<Address> ends;
};

// Ends of the lists; empty where this build keeps no lists (free-threaded) or they are not known.
std::vector<Address> gc_list_ends(const memory::Reader& reader, const Layout& layout, Address runtime,
                                  const Interpreter& interpreter);

// Objects whose type is wanted. Reads at most a million objects, and burns no more CPU than `limit`.
FoundObjects find_gc_objects(const memory::Reader& reader, const Layout& layout, Address runtime,
                             const Interpreter& interpreter, const std::function<bool(Address type)>& wanted,
                             std::chrono::milliseconds limit);

}  // namespace hangtrace::python
