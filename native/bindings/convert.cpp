#include "bindings/convert.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

namespace hangtrace::bindings {

namespace {

constexpr std::size_t latest_keys = 256;
constexpr std::size_t longest_shared = 4096;  // names of C++ templates are long

struct Hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view bytes) const { return std::hash<std::string_view>{}(bytes); }
};
using Texts = std::unordered_map<std::string, py::str, Hash, std::equal_to<>>;

struct Shared {
  Texts texts;
  std::unordered_map<const char*, py::str> literals;
  std::array<std::pair<const void*, py::str>, latest_keys> latest{};  // by address
};

thread_local std::unique_ptr<Shared> shared_texts;

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
    shared_texts = std::make_unique<Shared>();
  }
}

SharedTexts::~SharedTexts() {
  // A text may go only when nothing finds it here any more.
  const std::unique_ptr<Shared> dropped = std::move(shared_texts);
}

py::str text(std::string_view bytes) {
  if (!shared_texts || bytes.size() > longest_shared) {
    return decode(bytes);
  }
  Texts& texts = shared_texts->texts;
  if (const auto known = texts.find(bytes); known != texts.end()) {
    return known->second;
  }
  return texts.emplace(bytes, decode(bytes)).first->second;
}

py::str key(Literal literal) {
  if (!shared_texts) {
    return decode(literal.text());
  }
  const void* const address = literal.text().data();
  auto& [last, its_text] = shared_texts->latest[reinterpret_cast<std::uintptr_t>(address) / 4 % latest_keys];
  if (last == address) {
    return its_text;
  }
  auto& literals = shared_texts->literals;
  py::str found;
  if (const auto known = literals.find(literal.text().data()); known != literals.end()) {
    found = known->second;
  } else {
    // The same object as that of other texts of these bytes.
    found = literals.emplace(literal.text().data(), text(literal.text())).first->second;
  }
  last = address;
  its_text = found;
  return found;
}

std::chrono::steady_clock::time_point after(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(std::clamp(seconds, 0.0, 3600.0)));
}

void raise_os_error(int error, const std::string& path) {
  errno = error;
  PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
  throw py::error_already_set();
}

}  // namespace hangtrace::bindings
