#pragma once

#include <optional>
#include <string>

#include "python/objects.hpp"

// Functions as others keep them to call them later.
namespace hangtrace::python {

// A method of an object, bound to it.
struct BoundMethod {
  Address function = 0;  // 0: it is none
  Address self = 0;
};

// What a `with` block keeps on the value stack of its frame for its end, `next` above `value` (0: nothing): a
// bound method, since 3.14 the function and its self (0: it takes none) apart.
BoundMethod method_on_stack(Objects& objects, Address value, Address next);

// __name__ of a Python function; nullopt: unreadable, or its layout is not known.
std::optional<std::string> function_name(const Objects& objects, Address function);

}  // namespace hangtrace::python
