#include "bindings/open_files.hpp"

#include <pybind11/stl.h>

#include "bindings/convert.hpp"
#include "open_files/reader.hpp"

namespace hangtrace::bindings {

namespace {

py::dict read(open_files::Reader& reader, const open_files::Wanted& wanted) {
  const open_files::States states = [&] {
    const py::gil_scoped_release release;
    return reader.read(wanted);
  }();
  py::list sockets;
  for (const open_files::SocketState& state : states.sockets) {
    sockets.append(
        py::make_tuple(state.pid, state.fd, state.inode, state.receive_s, state.send_s, state.user_s));
  }
  py::list pipes;
  for (const open_files::PipeState& state : states.pipes) {
    pipes.append(py::make_tuple(state.pid, state.fd, state.inode, state.queued, state.capacity));
  }
  py::dict result;
  result["sockets"] = sockets;
  result["pipes"] = pipes;
  result["status"] = py::make_tuple(registers::name(reader.status().state), text(reader.status().reason));
  return result;
}

}  // namespace

void define_open_files(py::module_& module) {
  py::class_<open_files::Reader>(module, "OpenFileReader")
      .def(py::init<std::string>(), py::arg("btf_path") = "/sys/kernel/btf/vmlinux")
      .def("read", &read, py::arg("wanted"));
}

}  // namespace hangtrace::bindings
