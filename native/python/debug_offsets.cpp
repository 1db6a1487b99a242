#include <algorithm>
#include <cstring>

#include "python/layout.hpp"

namespace hangtrace::python {
namespace {

constexpr std::size_t kHeaderSize = 24;             // cookie, version, free_threaded
constexpr std::uint64_t kMaxStateOffset = 1 << 24;  // in the runtime and in an interpreter
constexpr std::uint64_t kMaxOffset = 4096;          // in everything smaller

// What the offsets tell. The GIL's fields are told from the start of an interpreter, whose own GIL need not
// be the one that it uses; only `enabled` is told from the start of the GIL.
struct Told : Layout {
  int own_gil = -1;
  int own_gil_locked = -1;
  int own_gil_holder = -1;
};

// One 64-bit field of _Py_DebugOffsets after the header: the member it gives, or none.
using Member = int Told::*;

enum class Means { offset, size };  // in the structure whose size was told last; of a structure

struct Field {
  Means means;
  Member member;
};

constexpr Field at(Member member = nullptr) {
  return {Means::offset, member};
}
constexpr Field size(Member member = nullptr) {
  return {Means::size, member};
}

// Include/internal/pycore_runtime.h of 3.13, struct _Py_DebugOffsets.
constexpr Field kFields313[] = {
    // runtime_state
    size(), at(), at(&Layout::runtime_interpreters),
    // interpreter_state
    size(&Layout::interpreter_size), at(&Layout::interpreter_id), at(&Layout::interpreter_next),
    at(&Layout::interpreter_threads), at(), at(&Layout::interpreter_modules),
    at(&Layout::interpreter_sysdict), at(), at(&Layout::interpreter_gil), at(&Told::own_gil),
    at(&Layout::gil_enabled), at(&Told::own_gil_locked), at(&Told::own_gil_holder),
    // thread_state
    size(&Layout::thread_size), at(), at(&Layout::thread_next), at(&Layout::thread_interpreter),
    at(&Layout::thread_frame), at(&Layout::thread_ident), at(&Layout::thread_native_id),
    at(&Layout::thread_chunk), at(),
    // interpreter_frame
    size(), at(&Layout::frame_previous), at(&Layout::frame_code), at(&Layout::frame_instruction),
    at(&Layout::frame_slots), at(&Layout::frame_owner),
    // code_object
    size(&Layout::code_size), at(&Layout::code_filename), at(&Layout::code_name), at(&Layout::code_qualname),
    at(&Layout::code_lines), at(&Layout::code_first_line), at(), at(&Layout::code_names), at(),
    at(&Layout::code_adaptive),
    // pyobject
    size(&Layout::object_size), at(&Layout::object_type),
    // type_object
    size(&Layout::type_size), at(&Layout::type_name), at(), at(&Layout::type_flags),
    // tuple_object
    size(), at(&Layout::tuple_items), at(&Layout::tuple_size),
    // list_object
    size(), at(&Layout::list_items), at(&Layout::list_size),
    // dict_object
    size(), at(&Layout::dict_keys), at(&Layout::dict_values),
    // float_object
    size(), at(&Layout::float_value),
    // long_object
    size(), at(&Layout::int_size), at(&Layout::int_digits),
    // bytes_object
    size(), at(&Layout::bytes_size), at(&Layout::bytes_data),
    // unicode_object
    size(), at(&Layout::string_state), at(&Layout::string_length), at(&Layout::string_ascii_data)};

// Include/internal/pycore_debug_offsets.h of 3.14. Since 3.13: threads_main, generations, stackpointer,
// tlbc_index, co_tlbc and set_object were put in between.
constexpr Field kFields314[] = {
    // runtime_state
    size(), at(), at(&Layout::runtime_interpreters),
    // interpreter_state
    size(&Layout::interpreter_size), at(&Layout::interpreter_id), at(&Layout::interpreter_next),
    at(&Layout::interpreter_threads), at(), at(), at(&Layout::interpreter_modules),
    at(&Layout::interpreter_sysdict), at(), at(&Layout::interpreter_gil), at(&Told::own_gil),
    at(&Layout::gil_enabled), at(&Told::own_gil_locked), at(&Told::own_gil_holder), at(), at(),
    // thread_state
    size(&Layout::thread_size), at(), at(&Layout::thread_next), at(&Layout::thread_interpreter),
    at(&Layout::thread_frame), at(&Layout::thread_ident), at(&Layout::thread_native_id),
    at(&Layout::thread_chunk), at(),
    // interpreter_frame
    size(), at(&Layout::frame_previous), at(&Layout::frame_code), at(&Layout::frame_instruction),
    at(&Layout::frame_slots), at(&Layout::frame_owner), at(), at(&Layout::frame_tlbc_index),
    // code_object
    size(&Layout::code_size), at(&Layout::code_filename), at(&Layout::code_name), at(&Layout::code_qualname),
    at(&Layout::code_lines), at(&Layout::code_first_line), at(), at(&Layout::code_names), at(),
    at(&Layout::code_adaptive), at(&Layout::code_tlbc),
    // pyobject
    size(&Layout::object_size), at(&Layout::object_type),
    // type_object
    size(&Layout::type_size), at(&Layout::type_name), at(), at(&Layout::type_flags),
    // tuple_object
    size(), at(&Layout::tuple_items), at(&Layout::tuple_size),
    // list_object
    size(), at(&Layout::list_items), at(&Layout::list_size),
    // set_object
    size(), at(), at(), at(),
    // dict_object
    size(), at(&Layout::dict_keys), at(&Layout::dict_values),
    // float_object
    size(), at(&Layout::float_value),
    // long_object
    size(), at(&Layout::int_size), at(&Layout::int_digits),
    // bytes_object
    size(), at(&Layout::bytes_size), at(&Layout::bytes_data),
    // unicode_object
    size(), at(&Layout::string_state), at(&Layout::string_length), at(&Layout::string_ascii_data)};

// Include/internal/pycore_debug_offsets.h of 3.15. Since 3.14: base_frame, last_profiled_frame and its
// number, holds_gil, gil_requested, current_exception, exc_state, err_stackitem, tp_basicsize, tp_dictoffset,
// heap_type_object and the size of PyCompactUnicodeObject were put in between.
constexpr Field kFields315[] = {
    // runtime_state
    size(), at(), at(&Layout::runtime_interpreters),
    // interpreter_state
    size(&Layout::interpreter_size), at(&Layout::interpreter_id), at(&Layout::interpreter_next),
    at(&Layout::interpreter_threads), at(), at(), at(&Layout::interpreter_modules),
    at(&Layout::interpreter_sysdict), at(), at(&Layout::interpreter_gil), at(&Told::own_gil),
    at(&Layout::gil_enabled), at(&Told::own_gil_locked), at(&Told::own_gil_holder), at(), at(),
    // thread_state
    size(&Layout::thread_size), at(), at(&Layout::thread_next), at(&Layout::thread_interpreter),
    at(&Layout::thread_frame), at(), at(), at(), at(&Layout::thread_ident), at(&Layout::thread_native_id),
    at(&Layout::thread_chunk), at(), at(), at(), at(), at(),
    // err_stackitem, without a size
    at(),
    // interpreter_frame
    size(), at(&Layout::frame_previous), at(&Layout::frame_code), at(&Layout::frame_instruction),
    at(&Layout::frame_slots), at(&Layout::frame_owner), at(), at(&Layout::frame_tlbc_index),
    // code_object
    size(&Layout::code_size), at(&Layout::code_filename), at(&Layout::code_name), at(&Layout::code_qualname),
    at(&Layout::code_lines), at(&Layout::code_first_line), at(), at(&Layout::code_names), at(),
    at(&Layout::code_adaptive), at(&Layout::code_tlbc),
    // pyobject
    size(&Layout::object_size), at(&Layout::object_type),
    // type_object
    size(&Layout::type_size), at(&Layout::type_name), at(), at(&Layout::type_flags),
    at(&Layout::type_basic_size), at(&Layout::type_dict_offset),
    // heap_type_object
    size(), at(&Layout::type_cached_keys),
    // tuple_object
    size(), at(&Layout::tuple_items), at(&Layout::tuple_size),
    // list_object
    size(), at(&Layout::list_items), at(&Layout::list_size),
    // set_object
    size(), at(), at(), at(),
    // dict_object
    size(), at(&Layout::dict_keys), at(&Layout::dict_values),
    // float_object
    size(), at(&Layout::float_value),
    // long_object
    size(), at(&Layout::int_size), at(&Layout::int_digits),
    // bytes_object
    size(), at(&Layout::bytes_size), at(&Layout::bytes_data),
    // unicode_object
    size(), at(&Layout::string_state), at(&Layout::string_length), at(&Layout::string_ascii_data),
    at(&Layout::string_compact_data)};

std::span<const Field> fields_of(int minor) {
  switch (minor) {
    case 13:
      return kFields313;
    case 14:
      return kFields314;
    case 15:
      return kFields315;
    default:
      return {};
  }
}

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
  const bool types_told = layout.minor >= 15;
  if (!types_told && (layout.type_size != known.type_size || layout.type_name != known.type_name)) {
    layout.type_basic_size = -1;
    layout.type_dict_offset = -1;
    layout.type_cached_keys = -1;
  }
  if (layout.object_size != known.object_size) layout.function_name = -1;
}

// False with `problem` if a field cannot be what it claims to be.
bool take_fields(std::span<const std::byte> runtime, std::span<const Field> fields, Told& layout,
                 std::string& problem) {
  bool in_state = true;  // in the runtime or in an interpreter
  std::uint64_t size_told = 0;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const Field& field = fields[i];
    const std::uint64_t value = word_at(runtime, kHeaderSize + 8 * i);
    in_state = in_state && field.member != &Layout::thread_size;
    if (value > (in_state ? kMaxStateOffset : kMaxOffset)) {
      problem = "_Py_DebugOffsets has an offset out of range";
      return false;
    }
    if (field.means == Means::size) size_told = value;
    if (field.member == nullptr) continue;
    // The data of a compact string start where its structure ends.
    const bool at_end =
        field.member == &Layout::string_ascii_data || field.member == &Layout::string_compact_data;
    if (field.means == Means::offset && !at_end && value >= size_told) {
      problem = "_Py_DebugOffsets has an offset outside of its structure";
      return false;
    }
    layout.*field.member = static_cast<int>(value);
  }
  return true;
}

// The GIL's fields, told from the start of an interpreter, as offsets in the GIL.
bool place_gil_fields(Told& layout, const Layout& known) {
  auto inside = [&](int offset) { return offset - layout.own_gil; };
  layout.gil_locked = inside(layout.own_gil_locked);
  layout.gil_holder = inside(layout.own_gil_holder);
  auto sound = [&](int offset) { return offset >= 0 && offset < known.gil_size; };
  if (!layout.free_threaded) layout.gil_enabled = -1;
  return sound(layout.gil_locked) && sound(layout.gil_holder) && sound(std::max(layout.gil_enabled, 0));
}

}  // namespace

const Layout* known_layout(int minor, bool free_threaded) {
  for (const Layout& layout : known_layouts()) {
    if (layout.minor == minor && layout.free_threaded == free_threaded) return &layout;
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
  const std::uint64_t level = (version >> 4) & 0xf;  // 0xa alpha, 0xb beta, 0xc candidate, 0xf final
  if (level < 0xc) {
    result.problem = "a pre-release, whose _Py_DebugOffsets need not be those of the release";
    return result;
  }
  const std::span<const Field> fields = fields_of(minor);
  const Layout* known = known_layout(minor, free_threaded == 1);
  if (fields.empty() || known == nullptr) {
    result.problem = "the _Py_DebugOffsets of Python 3." + std::to_string(minor) + " are not known";
    return result;
  }
  if (runtime.size() < kHeaderSize + fields.size() * 8) {
    result.problem = "_Py_DebugOffsets is cut short";
    return result;
  }
  Told layout{*known};
  if (!take_fields(runtime, fields, layout, result.problem)) return result;
  if (!place_gil_fields(layout, *known)) {
    result.problem = "_Py_DebugOffsets places the GIL's fields outside of it";
    return result;
  }
  if (!layout.free_threaded || minor < 14) {
    layout.frame_tlbc_index = -1;
    layout.code_tlbc = -1;
  }
  // Between the flags of ASCII strings and their data lies nothing; other compact strings have a length and a
  // pointer to UTF-8 there.
  if (minor < 15) layout.string_compact_data = layout.string_ascii_data + 16;
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
