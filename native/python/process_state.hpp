#pragma once

#include "python/async_layout.hpp"
#include "python/process.hpp"
#include "python/slots.hpp"
#include "python/threads.hpp"

namespace hangtrace::python {

struct PythonProcess::State {
  State(const memory::Reader& reader, Runtime found)
      : reader(reader),
        runtime(std::move(found)),
        objects(reader, runtime.layout.value_or(Layout{}), runtime.hash_secret),
        slots(objects) {}

  const memory::Reader& reader;
  Runtime runtime;
  Objects objects;
  Slots slots;
  CodeCache codes;
  std::string problem;
  std::unordered_map<Address, AsyncLayout>
      async_layouts;  // by asyncio.Task of C whose own it was found to be
  // Where names were found in a sys.modules, to look there first the next time.
  struct KnownModules {
    std::size_t count = 0;
    Address last_key = 0;
    std::map<std::string, std::optional<Address>, std::less<>> keys;
  };
  std::unordered_map<Address, KnownModules> known_modules;
  // Greenlets of each interpreter, with the ends of the collector's lists in which they were found.
  struct KnownGreenlets {
    Address type = 0;
    std::vector<Address> ends;
    std::vector<Address> greenlets;
    bool complete = false;
  };
  std::unordered_map<Address, KnownGreenlets> known_greenlets;
  // Names of the slots of code objects, "" where unreadable; of this look.
  std::unordered_map<Address, std::vector<std::string>> slot_names;
  // By which word code could let others go on, "" for none; of this look.
  std::unordered_map<Address, std::string> go_words;

  void start_look();

  const Layout& layout() const { return objects.layout(); }

  // The interpreter with id 0, or the only one; nullopt if there is none.
  std::optional<Interpreter> main_interpreter();
  // Modules in an interpreter's sys.modules by name. Where their hashes do not tell, reads the names of all,
  // and that only when modules were added.
  std::vector<std::optional<Address>> find_modules(const Interpreter& interpreter,
                                                   std::span<const std::string_view> names);
  std::optional<Address> module_dict(std::string_view module);
  void add_threads(const Interpreter& interpreter, const ThreadIds& tids, PythonState& state);
  void add_gil(const Interpreter& interpreter, const std::vector<ThreadState>& threads, std::size_t first,
               PythonState& state);
  std::unordered_map<std::uint64_t, std::string> thread_names(const Interpreter& interpreter);
  void add_asyncio_tasks(const Interpreter& interpreter, const std::vector<ThreadState>& threads,
                         std::size_t first, PythonState& state);
  void add_greenlets(const Interpreter& interpreter, PythonState& state);
  const std::vector<std::string>& names_of_slots(Address code);
  // A local, cell or free variable; of a frame by address, or as it was copied with its thread.
  std::optional<Address> local_of(Address frame, Address code, std::string_view name);
  std::optional<Address> local_object(const PythonThread& thread, std::size_t index, std::string_view name);
  // What a dotted name leads to from an object.
  std::optional<Value> value_from(std::optional<Address> object, std::string_view rest,
                                  ValueLimits limits = {});
  std::optional<Address> content(Address slot);  // through a cell
  // Whether code calls by one of these names; also if that cannot be told.
  bool may_call(Address code, std::span<const std::string_view> wanted);
  // The names that code uses, of globals and attributes; nullopt: not readable.
  std::optional<std::vector<std::string>> names_in(Address code);
  const std::string& go_word(Address code);
  // The first such word of the innermost pieces of code outside of the standard library.
  template <typename Frames>
  std::string first_go_word(const Frames& frames);
  Address code_of_function(Address function) const;
  bool is_standard_library(std::string_view file) const;
};

}  // namespace hangtrace::python
