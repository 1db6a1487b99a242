#include "bindings/recorders.hpp"

#include <pybind11/stl.h>

#include "bindings/convert.hpp"

namespace hangtrace::bindings {

namespace {

py::list dtypes(const std::vector<std::uint8_t>& numbers) {
  py::list result;
  for (const std::uint8_t number : numbers) {
    const std::string_view name = torch::dtype_name(number);
    result.append(text(name.empty() ? "ScalarType " + std::to_string(number) : std::string(name)));
  }
  return result;
}

py::dict convert(const torch::RecordedOperation& operation) {
  py::dict result;
  result["id"] = operation.id;
  result["pg_id"] = operation.pg_id;
  result["group"] = text(operation.group);
  result["description"] = text(operation.description);
  result["collective"] = operation.collective;
  result["p2p"] = operation.p2p;
  result["op_id"] = operation.op_id;
  result["name"] = text(operation.name);
  result["created_ns"] = operation.created;
  result["timeout_ms"] = operation.timeout_ms;
  result["is_p2p"] = operation.is_p2p;
  result["duration_ms"] = operation.duration_ms;
  result["started_ns"] = operation.started;
  result["completed_ns"] = operation.completed;
  result["inputs"] = operation.inputs;
  result["outputs"] = operation.outputs;
  result["input_dtypes"] = dtypes(operation.input_dtypes);
  result["output_dtypes"] = dtypes(operation.output_dtypes);
  result["thread_id"] = operation.thread_id;
  result["thread_name"] = text(operation.thread_name);
  result["retired"] = operation.retired;
  return result;
}

py::list convert(const std::vector<python::CodeLine>& lines) {
  py::list result;
  for (const python::CodeLine& line : lines) {
    if (!line.function.empty()) {
      result.append(py::make_tuple(text(line.function), text(line.file), line.line));
    }
  }
  return result;
}

py::dict convert(const capture::Recorder& recorder) {
  const torch::Recording& recording = recorder.recording;
  py::list operations;
  for (std::size_t i = 0; i < recording.operations.size(); ++i) {
    py::dict operation = convert(recording.operations[i]);
    operation["frames"] = i < recorder.frames.size() ? convert(recorder.frames[i]) : py::list();
    operations.append(operation);
  }
  py::list status;
  for (const torch::GroupStatus& each : recording.status) {
    status.append(py::make_tuple(each.pg_id, each.enqueued, each.started, each.completed));
  }
  py::list ranks;
  for (const torch::GroupRanks& each : recording.ranks) {
    ranks.append(py::make_tuple(text(each.name), text(each.description), each.ranks));
  }
  py::dict result;
  result["library"] = text(recorder.library);
  result["outcome"] = recorder.has_symbol ? name(recording.outcome) : "no_symbol";
  result["layout"] = recording.layout != nullptr ? text(recording.layout->name) : text("");
  result["most"] = recording.most;
  result["recorded"] = recording.recorded;
  result["resets"] = recording.epoch;
  result["whole"] = recording.whole;
  result["operations"] = operations;
  result["status"] = status;
  result["ranks"] = ranks;
  result["library_version"] = text(recording.library_version);
  return result;
}

}  // namespace

py::list recorders(capture::Engine& engine, int pid, bool all, bool frames) {
  std::vector<capture::Recorder> found;
  {
    const py::gil_scoped_release release;
    found = engine.recorders(pid, {.all = all, .frames = frames});
  }
  const SharedTexts shared;
  const CollectorPause pause;
  py::list result;
  for (const capture::Recorder& each : found) {
    result.append(convert(each));
  }
  return result;
}

}  // namespace hangtrace::bindings
