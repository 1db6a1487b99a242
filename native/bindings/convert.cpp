#include "bindings/convert.hpp"

#include <cerrno>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

namespace hangtrace::bindings {

namespace {

constexpr std::size_t longest_shared = 4096;  // names of C++ templates are long

struct Hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view bytes) const { return std::hash<std::string_view>{}(bytes); }
};
using Texts = std::unordered_map<std::string, py::str, Hash, std::equal_to<>>;

thread_local std::unique_ptr<Texts> shared_texts;

py::str decode(std::string_view bytes) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (decoded == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::str>(decoded);
}

}  // namespace

SharedTexts::SharedTexts() {
  if (!shared_texts) {
    shared_texts = std::make_unique<Texts>();
  }
}

SharedTexts::~SharedTexts() {
  // A text may go only when nothing finds it here any more.
  const std::unique_ptr<Texts> dropped = std::move(shared_texts);
}

py::str text(std::string_view bytes) {
  if (!shared_texts || bytes.size() > longest_shared) {
    return decode(bytes);
  }
  if (const auto known = shared_texts->find(bytes); known != shared_texts->end()) {
    return known->second;
  }
  return shared_texts->emplace(bytes, decode(bytes)).first->second;
}

void raise_os_error(int error, const std::string& path) {
  errno = error;
  PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
  throw py::error_already_set();
}

}  // namespace hangtrace::bindings
