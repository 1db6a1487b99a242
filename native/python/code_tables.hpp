#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

// The tables of a code object that map an instruction to a line or to its exception handler. All take any
// bytes.
namespace hangtrace::python {

using Bytes = std::span<const std::byte>;

// co_linetable since 3.11 (InternalDocs/code_objects.md, "The locations table"). `unit`: index of a 2-byte
// code unit, negative before the first instruction. 0: the instruction has no line.
int line_in_locations(Bytes table, int first_line, std::int64_t unit);

// co_linetable of 3.10 (Objects/lnotab_notes.txt). `offset`: of the instruction, in bytes.
int line_in_ranges(Bytes table, int first_line, std::int64_t offset);

// co_lnotab of 3.8 and 3.9 (Objects/lnotab_notes.txt). `offset`: of the instruction, in bytes.
int line_in_lnotab(Bytes table, int first_line, std::int64_t offset);

// co_exceptiontable since 3.11 (InternalDocs/exception_handling.md): how many values of the stack the
// innermost handler of the instruction at `unit` keeps; nullopt if no handler covers it.
std::optional<std::size_t> handler_depth(Bytes table, std::int64_t unit);

}  // namespace hangtrace::python
