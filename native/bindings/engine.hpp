#pragma once

#include <pybind11/pybind11.h>

namespace hangtrace::bindings {

/// class Engine.
void define_engine(pybind11::module_& module);

}  // namespace hangtrace::bindings
