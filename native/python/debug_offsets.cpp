#include <cstring>

#include "python/layout.hpp"

namespace hangtrace::python {
namespace {

constexpr std::size_t kHeaderSize = 24;             // cookie, version, free_threaded
constexpr std::uint64_t kMaxStateOffset = 1 << 24;  // in the runtime and in an interpreter
constexpr std::uint64_t kMaxOffset = 4096;          // in everything smaller

// What the offsets tell. The GIL's fields are told from the start of an interpreter, whose own GIL need not
// be the one that it uses.
struct Told : Layout {
  int own_gil = -1;
  int own_gil_locked = -1;
  int own_gil_holder = -1;
};

// One 64-bit field of _Py_DebugOffsets after the header: the member it gives, or none.
using Member = int Told::*;
constexpr Member kUnused = nullptr;

// Include/internal/pycore_runtime.h of 3.13, struct _Py_DebugOffsets.
constexpr Member kFields313[] = {
    // runtime_state
    kUnused, kUnused, &Layout::runtime_interpreters,
    // interpreter_state
    &Layout::interpreter_size, &Layout::interpreter_id, &Layout::interpreter_next,
    &Layout::interpreter_threads, kUnused, &Layout::interpreter_modules, &Layout::interpreter_sysdict,
    kUnused, &Layout::interpreter_gil, &Told::own_gil, kUnused, &Told::own_gil_locked, &Told::own_gil_holder,
    // thread_state
    &Layout::thread_size, kUnused, &Layout::thread_next, &Layout::thread_interpreter, &Layout::thread_frame,
    &Layout::thread_ident, &Layout::thread_native_id, &Layout::thread_chunk, kUnused,
    // interpreter_frame
    kUnused, &Layout::frame_previous, &Layout::frame_code, &Layout::frame_instruction, &Layout::frame_slots,
    &Layout::frame_owner,
    // code_object
    &Layout::code_size, &Layout::code_filename, &Layout::code_name, &Layout::code_qualname,
    &Layout::code_lines, &Layout::code_first_line, kUnused, &Layout::code_names, kUnused,
    &Layout::code_adaptive,
    // pyobject
    &Layout::object_size, &Layout::object_type,
    // type_object
    &Layout::type_size, &Layout::type_name, kUnused, &Layout::type_flags,
    // tuple_object
    kUnused, &Layout::tuple_items, &Layout::tuple_size,
    // list_object
    kUnused, &Layout::list_items, &Layout::list_size,
    // dict_object
    kUnused, &Layout::dict_keys, &Layout::dict_values,
    // float_object
    kUnused, &Layout::float_value,
    // long_object
    kUnused, &Layout::int_size, &Layout::int_digits,
    // bytes_object
    kUnused, &Layout::bytes_size, &Layout::bytes_data,
    // unicode_object
    kUnused, &Layout::string_state, &Layout::string_length, &Layout::string_ascii_data};

// Include/internal/pycore_debug_offsets.h of 3.14. Since 3.13: threads_main, generations, stackpointer,
// tlbc_index, co_tlbc and set_object were put in between.
constexpr Member kFields314[] = {
    // runtime_state
    kUnused, kUnused, &Layout::runtime_interpreters,
    // interpreter_state
    &Layout::interpreter_size, &Layout::interpreter_id, &Layout::interpreter_next,
    &Layout::interpreter_threads, kUnused, kUnused, &Layout::interpreter_modules,
    &Layout::interpreter_sysdict, kUnused, &Layout::interpreter_gil, &Told::own_gil, kUnused,
    &Told::own_gil_locked, &Told::own_gil_holder, kUnused, kUnused,
    // thread_state
    &Layout::thread_size, kUnused, &Layout::thread_next, &Layout::thread_interpreter, &Layout::thread_frame,
    &Layout::thread_ident, &Layout::thread_native_id, &Layout::thread_chunk, kUnused,
    // interpreter_frame
    kUnused, &Layout::frame_previous, &Layout::frame_code, &Layout::frame_instruction, &Layout::frame_slots,
    &Layout::frame_owner, kUnused, kUnused,
    // code_object
    &Layout::code_size, &Layout::code_filename, &Layout::code_name, &Layout::code_qualname,
    &Layout::code_lines, &Layout::code_first_line, kUnused, &Layout::code_names, kUnused,
    &Layout::code_adaptive, kUnused,
    // pyobject
    &Layout::object_size, &Layout::object_type,
    // type_object
    &Layout::type_size, &Layout::type_name, kUnused, &Layout::type_flags,
    // tuple_object
    kUnused, &Layout::tuple_items, &Layout::tuple_size,
    // list_object
    kUnused, &Layout::list_items, &Layout::list_size,
    // set_object
    kUnused, kUnused, kUnused, kUnused,
    // dict_object
    kUnused, &Layout::dict_keys, &Layout::dict_values,
    // float_object
    kUnused, &Layout::float_value,
    // long_object
    kUnused, &Layout::int_size, &Layout::int_digits,
    // bytes_object
    kUnused, &Layout::bytes_size, &Layout::bytes_data,
    // unicode_object
    kUnused, &Layout::string_state, &Layout::string_length, &Layout::string_ascii_data};

std::uint64_t word_at(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t value = 0;
  if (offset + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// Members that neither _Py_DebugOffsets tells nor the headers of that very build: right only if the
// structures they lie in are as large as in the known layout.
void keep_only_sure(Layout& layout, const Layout& known) {
  if (layout.code_size != known.code_size || layout.code_names != known.code_names) {
    layout.code_stack_size = -1;
    layout.code_exceptions = -1;
  }
  if (layout.type_size != known.type_size || layout.type_name != known.type_name) {
    layout.type_basic_size = -1;
    layout.type_dict_offset = -1;
    layout.type_cached_keys = -1;
  }
  if (layout.object_size != known.object_size) layout.function_name = -1;
}

}  // namespace

const Layout* known_layout(int minor) {
  for (const Layout& layout : known_layouts()) {
    if (layout.minor == minor) return &layout;
  }
  return nullptr;
}

DebugOffsets read_debug_offsets(std::span<const std::byte> runtime) {
  DebugOffsets result;
  if (runtime.size() < kHeaderSize || std::memcmp(runtime.data(), "xdebugpy", 8) != 0) {
    result.problem = "_PyRuntime does not start with _Py_DebugOffsets";
    return result;
  }
  const std::uint64_t version = word_at(runtime, 8);
  const std::uint64_t free_threaded = word_at(runtime, 16);
  if ((version >> 24) != 3 || free_threaded > 1) {
    result.problem = "_Py_DebugOffsets has a version or flag that cannot be";
    return result;
  }
  result.version_hex = static_cast<std::uint32_t>(version);
  const int minor = static_cast<int>((version >> 16) & 0xff);
  std::span<const Member> fields;
  if (minor == 13) {
    fields = kFields313;
  } else if (minor == 14) {
    fields = kFields314;
  }
  const Layout* known = known_layout(minor);
  if (fields.empty() || known == nullptr) {
    result.problem = "the _Py_DebugOffsets of Python 3." + std::to_string(minor) + " are not known";
    return result;
  }
  if (runtime.size() < kHeaderSize + fields.size() * 8) {
    result.problem = "_Py_DebugOffsets is cut short";
    return result;
  }
  Told layout{*known};
  layout.free_threaded = free_threaded == 1;
  bool in_state = true;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i] == kUnused) continue;
    in_state = in_state && fields[i] != &Layout::thread_size;
    const std::uint64_t offset = word_at(runtime, kHeaderSize + 8 * i);
    if (offset > (in_state ? kMaxStateOffset : kMaxOffset)) {
      result.problem = "_Py_DebugOffsets has an offset out of range";
      return result;
    }
    layout.*fields[i] = static_cast<int>(offset);
  }
  const int locked = layout.own_gil_locked - layout.own_gil;
  const int holder = layout.own_gil_holder - layout.own_gil;
  if (locked < 0 || locked >= known->gil_size || holder < 0 || holder >= known->gil_size) {
    result.problem = "_Py_DebugOffsets places the GIL's fields outside of it";
    return result;
  }
  layout.gil_locked = locked;
  layout.gil_holder = holder;
  // Between the flags of ASCII strings and their data lies nothing; other compact strings have a length and a
  // pointer to UTF-8 there.
  layout.string_compact_data = layout.string_ascii_data + 16;
  // In the free-threaded build of 3.14 `interned` is a byte of its own.
  if (layout.free_threaded && minor >= 14) layout.string_kind_shift = 8;
  // The smallest sizes that make sense, so that nothing read by these offsets can run out of a structure.
  if (layout.object_size < 16 || layout.object_type > layout.object_size - 8 || layout.frame_slots < 8 ||
      layout.thread_size < 64) {
    result.problem = "_Py_DebugOffsets gives structures that are too small";
    return result;
  }
  keep_only_sure(layout, *known);
  result.layout = static_cast<const Layout&>(layout);
  return result;
}

}  // namespace hangtrace::python
