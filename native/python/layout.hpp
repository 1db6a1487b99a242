#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace hangtrace::python {

// Where things lie in one CPython version: offsets and sizes in bytes, -1 for what the version does not have
// or what is not known. Up to 3.12 from the version's headers (layout_tables.cpp); from 3.13 on the target's
// own _Py_DebugOffsets replace whatever they cover.
struct Layout {
  int minor = 0;
  bool free_threaded = false;

  int runtime_interpreters = -1;  // first PyInterpreterState
  int interpreter_size = -1;
  int interpreter_next = -1;
  int interpreter_id = -1;
  int interpreter_sysdict = -1;
  int interpreter_threads = -1;  // first PyThreadState
  int interpreter_modules = -1;  // sys.modules
  int interpreter_gil = -1;      // since 3.12: pointer to the GIL. Before that:
  int runtime_gil = -1;          // the GIL itself, in _PyRuntime
  int gil_size = -1;
  int gil_locked = -1;
  int gil_holder = -1;   // PyThreadState that holds or held it last
  int gil_enabled = -1;  // free-threaded builds: 0 unless something asked for the GIL

  int thread_size = -1;
  int thread_next = -1;
  int thread_interpreter = -1;
  int thread_ident = -1;
  int thread_native_id = -1;  // since 3.11
  int thread_chunk = -1;      // since 3.11: newest chunk of the data stack, where most frames lie
  int thread_frame = -1;      // innermost frame. 3.11 and 3.12 keep it in
  int thread_cframe = -1;     // a _PyCFrame instead, at
  int cframe_frame = -1;
  int thread_stack_mark = -1;  // 3.10 to 3.12: pointer to what lies on the C stack, or into the thread state
  int chunk_previous = -1;
  int chunk_size = -1;

  // Since 3.11 _PyInterpreterFrame, before that PyFrameObject.
  int frame_previous = -1;
  int frame_owner = -1;        // since 3.11
  int frame_slots = -1;        // locals, cells, free variables, value stack
  int frame_blocks = -1;       // before 3.11: array of {int type, handler, level}
  int frame_block_count = -1;  // before 3.11
  int frame_code = -1;
  int frame_instruction = -1;  // since 3.11 a pointer into the code; 3.10 an index; before that an offset
  int frame_is_entry = -1;     // 3.11 only
  int frame_tlbc_index = -1;   // free-threaded since 3.14: which copy of the code the instruction lies in

  int code_size = -1;
  int code_filename = -1;
  int code_name = -1;
  int code_first_line = -1;
  int code_stack_size = -1;
  int code_lines = -1;
  int code_qualname = -1;    // since 3.11
  int code_bytes = -1;       // before 3.11: bytes object
  int code_adaptive = -1;    // since 3.11: the instructions themselves
  int code_tlbc = -1;        // free-threaded since 3.14: _PyCodeArray {size, copies of the code by thread}
  int code_exceptions = -1;  // since 3.11
  int code_names = -1;       // since 3.11 of all slots, before that of plain locals only
  int code_cell_names = -1;  // before 3.11
  int code_free_names = -1;  // before 3.11

  int object_size = -1;
  int object_type = -1;
  int type_size = -1;
  int type_name = -1;
  int type_basic_size = -1;
  int type_flags = -1;
  int type_dict_offset = -1;
  int type_cached_keys = -1;
  int string_length = -1;
  int string_state = -1;
  int string_kind_shift = -1;  // bit of the state where the kind (3 bits), compact and ascii start
  int string_ascii_data = -1;
  int string_compact_data = -1;
  int function_name = -1;
  int bytes_size = -1;
  int bytes_data = -1;
  int tuple_size = -1;
  int tuple_items = -1;
  int list_size = -1;
  int list_items = -1;
  int float_value = -1;
  int int_size = -1;  // since 3.12 lv_tag, before that ob_size
  int int_digits = -1;
  int dict_keys = -1;
  int dict_values = -1;
  int keys_size = -1;              // before 3.11: number of index slots
  int keys_log2_index_bytes = -1;  // since 3.11
  int keys_kind = -1;              // since 3.11
  int keys_entries_used = -1;
  int keys_indices = -1;
  int values_first = -1;

  // Offset of the n-th word after the object header, for small C objects whose structs no header shows.
  int after_header(int words) const { return object_size + 8 * words; }
};

// Layouts made from the headers of released versions, one a minor version; from 3.13 on a second one of its
// free-threaded build.
std::span<const Layout> known_layouts();
const Layout* known_layout(int minor, bool free_threaded = false);

struct DebugOffsets {
  std::optional<Layout> layout;
  std::uint32_t version_hex = 0;
  std::string problem;
};

// Bytes to read at the start of _PyRuntime of 3.13 and later.
inline constexpr std::size_t kDebugOffsetsSize = 1024;

// Reads the _Py_DebugOffsets at the start of `runtime` (kDebugOffsetsSize bytes); nothing is believed that is
// out of range. Fields it does not tell are taken from the known layout of the same minor version, if the
// sizes of the structures are the same as there.
DebugOffsets read_debug_offsets(std::span<const std::byte> runtime);

}  // namespace hangtrace::python
