#include "python/callables.hpp"

namespace hangtrace::python {

BoundMethod method_on_stack(Objects& objects, Address value, Address next) {
  const std::string type = objects.type_name_of(value);
  if (type == "method") {  // PyMethodObject {head, im_func, im_self}
    return {objects.word(value, 0).value_or(0), objects.word(value, 1).value_or(0)};
  }
  if (type == "function" && objects.layout().minor >= 14) return {value, next};
  return {};
}

std::optional<std::string> function_name(const Objects& objects, Address function) {
  const int offset = objects.layout().function_name;
  if (offset < 0 || !plausible(function)) return std::nullopt;
  const auto name = objects.reader().read_value<Address>(function + static_cast<Address>(offset));
  return name ? objects.text(*name) : std::nullopt;
}

}  // namespace hangtrace::python
