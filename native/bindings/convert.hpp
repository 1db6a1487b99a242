#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace hangtrace::bindings {

namespace py = pybind11;

/// Text of a target, which may be no UTF-8: bytes that are not become \xNN, so the result can always be
/// encoded.
py::str text(std::string_view bytes);

/// The same of a text that is part of the program, such as a key: found by its address.
class Literal {
 public:
  template <std::size_t size>
  consteval Literal(const char (&text)[size]) : text_(text, size - 1) {}  // NOLINT: implicit on purpose
  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};
py::str key(Literal literal);

/// While one exists, text() of the same short bytes in this thread is the same object: pictures of many
/// threads hold few different texts, which are then made, and pickled, once.
class SharedTexts {
 public:
  SharedTexts();
  ~SharedTexts();
  SharedTexts(const SharedTexts&) = delete;
  SharedTexts& operator=(const SharedTexts&) = delete;
};

/// While one exists, Python's collector does not run: thousands of new containers would have it look for
/// cycles in what cannot have any.
class CollectorPause {
 public:
  CollectorPause() : was_enabled_(PyGC_Disable() != 0) {}
  ~CollectorPause() {
    if (was_enabled_) {
      PyGC_Enable();
    }
  }
  CollectorPause(const CollectorPause&) = delete;
  CollectorPause& operator=(const CollectorPause&) = delete;

 private:
  bool was_enabled_;
};

/// None for nullopt.
template <class T>
py::object optional_int(const std::optional<T>& value) {
  return value ? py::object(py::int_(*value)) : py::object(py::none());
}

/// When a budget that Python gave is used up: within an hour, whatever it says.
std::chrono::steady_clock::time_point after(double seconds);

/// Raises the OSError of an errno, with the file it is about.
[[noreturn]] void raise_os_error(int error, const std::string& path);

}  // namespace hangtrace::bindings
