#include "bindings/alarms.hpp"

#include <pybind11/stl.h>

#include "alarms/reader.hpp"
#include "bindings/convert.hpp"

namespace hangtrace::bindings {

namespace {

py::dict read(alarms::Reader& reader, const std::vector<int>& pids) {
  const auto found = [&] {
    const py::gil_scoped_release release;
    return reader.read(pids);
  }();
  py::dict left;
  for (const auto& [pid, seconds] : found) {
    left[py::int_(pid)] = seconds;
  }
  py::dict result;
  result["left_s"] = left;
  result["status"] = py::make_tuple(registers::name(reader.status().state), text(reader.status().reason));
  return result;
}

}  // namespace

void define_alarms(py::module_& module) {
  py::class_<alarms::Reader>(module, "AlarmReader")
      .def(py::init<std::string>(), py::arg("btf_path") = "/sys/kernel/btf/vmlinux")
      .def("read", &read, py::arg("pids"));
}

}  // namespace hangtrace::bindings
