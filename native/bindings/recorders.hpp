#pragma once

#include <pybind11/pybind11.h>

#include "capture/engine.hpp"

namespace hangtrace::bindings {

/// Flight recorders of a process, as Python's Engine.recorders() gives them.
pybind11::list recorders(capture::Engine& engine, int pid, bool all, bool frames);

}  // namespace hangtrace::bindings
