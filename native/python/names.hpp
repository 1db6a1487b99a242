#pragma once

#include <string_view>

namespace hangtrace::python {

/// "get" of "Queue.get".
inline std::string_view last_part(std::string_view dotted) {
  return dotted.substr(dotted.rfind('.') + 1);
}

/// Whether a file is of the package asyncio itself, whose functions name what they wait for.
inline bool is_of_asyncio(std::string_view file) {
  const std::size_t slash = file.rfind('/');
  return slash != std::string_view::npos && file.substr(0, slash).ends_with("asyncio");
}

}  // namespace hangtrace::python
