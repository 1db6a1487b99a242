#pragma once

#include <pybind11/pybind11.h>

namespace hangtrace::bindings {

void define_alarms(pybind11::module_& module);

}  // namespace hangtrace::bindings
