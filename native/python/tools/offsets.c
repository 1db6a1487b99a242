/* Prints the layout of one CPython version as members of hangtrace::python::Layout. Compiled by
 * make_layouts.py against the headers of each interpreter; nothing is printed for -1: the version has no such
 * field. */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#if PY_VERSION_HEX >= 0x03090000
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#else
#include <internal/pycore_pystate.h>
#endif
#if PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_code.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_frame.h>
#else
#include <frameobject.h>
/* Objects/dict-common.h of 3.8-3.10, which is not installed. */
struct _dictkeysobject {
  Py_ssize_t dk_refcnt;
  Py_ssize_t dk_size;
  void* dk_lookup;
  Py_ssize_t dk_usable;
  Py_ssize_t dk_nentries;
  char dk_indices[];
};
#endif
#include <internal/pycore_gil.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe_structs.h>
#endif

#define AT(type, field) ((long)offsetof(type, field))
static void put(const char* name, long value) {
  if (value != -1) printf("    .%s = %ld,\n", name, value);
}

/* Bit of PyASCIIObject.state at which `kind` starts. */
static int kind_shift(void) {
  PyASCIIObject text = {0};
  text.state.kind = 1;
  unsigned state;
  memcpy(&state, &text.state, sizeof state);
  return __builtin_ctz(state);
}

int main(void) {
  printf("    .minor = %d,\n", PY_MINOR_VERSION);
#ifdef Py_GIL_DISABLED
  printf("    .free_threaded = true,\n");
#endif
  put("runtime_interpreters", AT(_PyRuntimeState, interpreters.head));
  put("interpreter_size", sizeof(PyInterpreterState));
  put("interpreter_next", AT(PyInterpreterState, next));
  put("interpreter_id", AT(PyInterpreterState, id));
  put("interpreter_sysdict", AT(PyInterpreterState, sysdict));
#if PY_VERSION_HEX >= 0x030b0000
  put("interpreter_threads", AT(PyInterpreterState, threads.head));
#else
  put("interpreter_threads", AT(PyInterpreterState, tstate_head));
#endif
#if PY_VERSION_HEX >= 0x030c0000
  put("interpreter_modules", AT(PyInterpreterState, imports.modules));
  put("interpreter_gil", AT(PyInterpreterState, ceval.gil));
  put("runtime_gil", -1);
#else
  put("interpreter_modules", AT(PyInterpreterState, modules));
  put("interpreter_gil", -1);
  put("runtime_gil", AT(_PyRuntimeState, ceval.gil));
#endif
  put("gil_size", sizeof(struct _gil_runtime_state));
  put("gil_locked", AT(struct _gil_runtime_state, locked));
  put("gil_holder", AT(struct _gil_runtime_state, last_holder));
#ifdef Py_GIL_DISABLED
  put("gil_enabled", AT(struct _gil_runtime_state, enabled));
#endif

  put("thread_size", sizeof(PyThreadState));
  put("thread_next", AT(PyThreadState, next));
  put("thread_interpreter", AT(PyThreadState, interp));
  put("thread_ident", AT(PyThreadState, thread_id));
#if PY_VERSION_HEX >= 0x030b0000
  put("thread_native_id", AT(PyThreadState, native_thread_id));
  put("thread_chunk", AT(PyThreadState, datastack_chunk));
#else
  put("thread_native_id", -1);
  put("thread_chunk", -1);
#endif
#if PY_VERSION_HEX >= 0x030d0000
  put("thread_frame", AT(PyThreadState, current_frame));
  put("thread_cframe", -1);
  put("cframe_frame", -1);
#elif PY_VERSION_HEX >= 0x030b0000
  put("thread_frame", -1);
  put("thread_cframe", AT(PyThreadState, cframe));
  put("cframe_frame", AT(_PyCFrame, current_frame));
#else
  put("thread_frame", AT(PyThreadState, frame));
  put("thread_cframe", -1);
  put("cframe_frame", -1);
#endif

#if PY_VERSION_HEX >= 0x030b0000
#if PY_VERSION_HEX < 0x030d0000
  put("thread_stack_mark", AT(PyThreadState, cframe));
#endif
  put("chunk_previous", AT(_PyStackChunk, previous));
  put("chunk_size", AT(_PyStackChunk, size));
  put("frame_previous", AT(_PyInterpreterFrame, previous));
  put("frame_owner", AT(_PyInterpreterFrame, owner));
  put("frame_slots", AT(_PyInterpreterFrame, localsplus));
  put("frame_blocks", -1);
  put("frame_block_count", -1);
#if PY_VERSION_HEX >= 0x030d0000
  put("frame_code", AT(_PyInterpreterFrame, f_executable));
  put("frame_instruction", AT(_PyInterpreterFrame, instr_ptr));
  put("frame_is_entry", -1);
#if defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030e0000
  put("frame_tlbc_index", AT(_PyInterpreterFrame, tlbc_index));
#endif
#elif PY_VERSION_HEX >= 0x030c0000
  put("frame_code", AT(_PyInterpreterFrame, f_code));
  put("frame_instruction", AT(_PyInterpreterFrame, prev_instr));
  put("frame_is_entry", -1);
#else
  put("frame_code", AT(_PyInterpreterFrame, f_code));
  put("frame_instruction", AT(_PyInterpreterFrame, prev_instr));
  put("frame_is_entry", AT(_PyInterpreterFrame, is_entry));
#endif
#else
#if PY_VERSION_HEX >= 0x030a0000
  put("thread_stack_mark", AT(PyThreadState, cframe));
#endif
  put("chunk_previous", -1);
  put("chunk_size", -1);
  put("frame_previous", AT(PyFrameObject, f_back));
  put("frame_owner", -1);
  put("frame_slots", AT(PyFrameObject, f_localsplus));
  put("frame_blocks", AT(PyFrameObject, f_blockstack));
  put("frame_block_count", AT(PyFrameObject, f_iblock));
  put("frame_code", AT(PyFrameObject, f_code));
  put("frame_instruction", AT(PyFrameObject, f_lasti));
  put("frame_is_entry", -1);
#endif

  put("code_size", sizeof(PyCodeObject));
  put("code_filename", AT(PyCodeObject, co_filename));
  put("code_name", AT(PyCodeObject, co_name));
  put("code_first_line", AT(PyCodeObject, co_firstlineno));
  put("code_stack_size", AT(PyCodeObject, co_stacksize));
#if PY_VERSION_HEX >= 0x030a0000
  put("code_lines", AT(PyCodeObject, co_linetable));
#else
  put("code_lines", AT(PyCodeObject, co_lnotab));
#endif
#if PY_VERSION_HEX >= 0x030b0000
  put("code_qualname", AT(PyCodeObject, co_qualname));
  put("code_bytes", -1);
  put("code_adaptive", AT(PyCodeObject, co_code_adaptive));
#if defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030e0000
  put("code_tlbc", AT(PyCodeObject, co_tlbc));
#endif
  put("code_exceptions", AT(PyCodeObject, co_exceptiontable));
  put("code_names", AT(PyCodeObject, co_localsplusnames));
  put("code_cell_names", -1);
  put("code_free_names", -1);
#else
  put("code_qualname", -1);
  put("code_bytes", AT(PyCodeObject, co_code));
  put("code_adaptive", -1);
  put("code_exceptions", -1);
  put("code_names", AT(PyCodeObject, co_varnames));
  put("code_cell_names", AT(PyCodeObject, co_cellvars));
  put("code_free_names", AT(PyCodeObject, co_freevars));
#endif

  put("object_size", sizeof(PyObject));
  put("object_type", AT(PyObject, ob_type));
  put("type_size", sizeof(PyTypeObject));
  put("type_name", AT(PyTypeObject, tp_name));
  put("type_basic_size", AT(PyTypeObject, tp_basicsize));
  put("type_flags", AT(PyTypeObject, tp_flags));
  put("type_dict_offset", AT(PyTypeObject, tp_dictoffset));
  put("type_cached_keys", AT(PyHeapTypeObject, ht_cached_keys));
  put("string_length", AT(PyASCIIObject, length));
  put("string_state", AT(PyASCIIObject, state));
  put("string_kind_shift", kind_shift());
  put("string_ascii_data", sizeof(PyASCIIObject));
  put("string_compact_data", sizeof(PyCompactUnicodeObject));
  put("function_name", AT(PyFunctionObject, func_name));
  put("bytes_size", AT(PyBytesObject, ob_base.ob_size));
  put("bytes_data", AT(PyBytesObject, ob_sval));
  put("tuple_size", AT(PyTupleObject, ob_base.ob_size));
  put("tuple_items", AT(PyTupleObject, ob_item));
  put("list_size", AT(PyListObject, ob_base.ob_size));
  put("list_items", AT(PyListObject, ob_item));
  put("float_value", AT(PyFloatObject, ob_fval));
#if PY_VERSION_HEX >= 0x030c0000
  put("int_size", AT(PyLongObject, long_value.lv_tag));
  put("int_digits", AT(PyLongObject, long_value.ob_digit));
#else
  put("int_size", AT(PyLongObject, ob_base.ob_size));
  put("int_digits", AT(PyLongObject, ob_digit));
#endif
  put("dict_keys", AT(PyDictObject, ma_keys));
  put("dict_values", AT(PyDictObject, ma_values));
#if PY_VERSION_HEX >= 0x030b0000
  put("keys_size", -1);
  put("keys_log2_index_bytes", AT(struct _dictkeysobject, dk_log2_index_bytes));
  put("keys_kind", AT(struct _dictkeysobject, dk_kind));
#else
  put("keys_size", AT(struct _dictkeysobject, dk_size));
  put("keys_log2_index_bytes", -1);
  put("keys_kind", -1);
#endif
  put("keys_entries_used", AT(struct _dictkeysobject, dk_nentries));
  put("keys_indices", AT(struct _dictkeysobject, dk_indices));
#if PY_VERSION_HEX >= 0x030b0000
  put("values_first", AT(struct _dictvalues, values));
#else
  put("values_first", 0);
#endif
  return 0;
}
