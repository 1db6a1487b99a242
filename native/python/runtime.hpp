#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "memory/reader.hpp"
#include "proc/maps.hpp"
#include "python/layout.hpp"
#include "python/str_hash.hpp"

namespace hangtrace::python {

using memory::Address;

// Address in the target of a symbol of the module that `mapping` belongs to; nullopt if it has no such
// symbol.
using SymbolFinder = std::function<std::optional<Address>(const proc::Mapping& mapping, const char* symbol)>;

struct Runtime {
  Address address = 0;           // of _PyRuntime
  std::string version;           // "3.11.7"
  std::optional<Layout> layout;  // none: see problem
  std::string layout_from;       // "_Py_DebugOffsets", "table 3.11"
  std::string problem;
  std::optional<StrHash::Secret> hash_secret;  // of strs
};

// The CPython runtime of a process: the first module that exports _PyRuntime, those named like Python first.
// nullopt if there is none.
std::optional<Runtime> find_runtime(const memory::Reader& reader, std::span<const proc::Mapping> mappings,
                                    const SymbolFinder& find);

}  // namespace hangtrace::python
