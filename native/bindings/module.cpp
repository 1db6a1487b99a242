#include <pybind11/pybind11.h>

#include "bindings/alarms.hpp"
#include "bindings/engine.hpp"
#include "bindings/nccl.hpp"
#include "bindings/open_files.hpp"
#include "bindings/procfs.hpp"

PYBIND11_MODULE(_native, module) {
  module.doc() = "The native side of pyhangtrace; see _native.pyi.";
  hangtrace::bindings::define_procfs(module);
  hangtrace::bindings::define_engine(module);
  hangtrace::bindings::define_nccl(module);
  hangtrace::bindings::define_alarms(module);
  hangtrace::bindings::define_open_files(module);
}
