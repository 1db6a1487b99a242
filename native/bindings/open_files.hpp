#pragma once

#include <pybind11/pybind11.h>

namespace hangtrace::bindings {

void define_open_files(pybind11::module_& module);

}  // namespace hangtrace::bindings
