#pragma once

#include <pybind11/pybind11.h>

namespace hangtrace::bindings {

/// thread_counters, read_memory, maps, smaps, smaps_rollup, status.
void define_procfs(pybind11::module_& module);

}  // namespace hangtrace::bindings
