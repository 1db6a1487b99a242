#pragma once

#include "python/process.hpp"
#include "python/threads.hpp"

namespace hangtrace::python {

struct PythonProcess::State {
  State(const memory::Reader& reader, Runtime found)
      : reader(reader), runtime(std::move(found)), objects(reader, runtime.layout.value_or(Layout{})) {}

  const memory::Reader& reader;
  Runtime runtime;
  Objects objects;
  CodeCache codes;
  std::string problem;

  const Layout& layout() const { return objects.layout(); }

  // The interpreter with id 0, or the only one; nullopt if there is none.
  std::optional<Interpreter> main_interpreter();
  std::optional<Address> module_dict(std::string_view module);
  void add_threads(const Interpreter& interpreter, const ThreadIds& tids, PythonState& state);
  void add_gil(const Interpreter& interpreter, const std::vector<ThreadState>& threads, std::size_t first,
               PythonState& state);
  std::unordered_map<std::uint64_t, std::string> thread_names(const Interpreter& interpreter);
  std::optional<Address> local_object(const PythonThread& thread, std::size_t index, std::string_view name);
};

}  // namespace hangtrace::python
