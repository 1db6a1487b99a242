#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "python/layout.hpp"

using namespace hangtrace::python;

namespace {

std::vector<std::byte> runtime(std::uint64_t version, std::uint64_t free_threaded,
                               const std::vector<std::uint64_t>& fields) {
  std::vector<std::byte> bytes(kDebugOffsetsSize);
  std::memcpy(bytes.data(), "xdebugpy", 8);
  std::memcpy(bytes.data() + 8, &version, 8);
  std::memcpy(bytes.data() + 16, &free_threaded, 8);
  std::memcpy(bytes.data() + 24, fields.data(), 8 * fields.size());
  return bytes;
}

// _Py_DebugOffsets of CPython 3.13.0 on x86-64, as its memory shows it.
const std::vector<std::uint64_t> kFields = {
    // runtime_state: size, finalizing, interpreters_head
    283320, 608, 632,
    // interpreter_state: size, id, next, threads_head, gc, modules, sysdict, builtins, gil, then the own GIL,
    // its enabled, locked and holder
    194968, 7272, 7264, 7344, 7400, 7656, 7640, 7648, 16, 7752, 0, 7768, 7760,
    // thread_state: size, prev, next, interp, current_frame, ident, native id, chunk, status
    304, 0, 8, 16, 72, 152, 160, 232, 32,
    // interpreter_frame: size, previous, executable, instr_ptr, localsplus, owner
    80, 8, 0, 56, 72, 70,
    // code_object: size, filename, name, qualname, linetable, firstlineno, argcount, names, kinds, adaptive
    208, 112, 120, 128, 136, 68, 52, 96, 104, 200,
    // pyobject, type_object, tuple_object, list_object, dict_object, float_object, long_object, bytes_object
    16, 8, 416, 24, 88, 168, 32, 24, 16, 40, 24, 16, 48, 32, 40, 24, 16, 32, 16, 24, 40, 16, 32,
    // unicode_object: size, state, length, size of the ASCII form; gc
    64, 32, 16, 40, 240, 200};

}  // namespace

TEST_CASE("layouts of all versions with tables are there") {
  for (int minor = 8; minor <= 14; ++minor) {
    const Layout* layout = known_layout(minor);
    REQUIRE(layout != nullptr);
    CHECK(layout->object_size == 16);
    CHECK(layout->object_type == 8);
    CHECK(layout->code_first_line > 0);
    CHECK((layout->thread_frame >= 0) != (layout->thread_cframe >= 0));
    CHECK((layout->interpreter_gil >= 0) == (minor >= 12));
    CHECK((layout->frame_owner >= 0) == (minor >= 11));
  }
  CHECK(known_layout(7) == nullptr);
  CHECK(known_layout(99) == nullptr);
}

TEST_CASE("offsets that the target tells") {
  const DebugOffsets offsets = read_debug_offsets(runtime(0x030d00f0, 0, kFields));
  CHECK(offsets.problem.empty());
  CHECK(offsets.version_hex == 0x030d00f0);
  REQUIRE(offsets.layout);
  const Layout& layout = *offsets.layout;
  CHECK(layout.minor == 13);
  CHECK_FALSE(layout.free_threaded);
  CHECK(layout.runtime_interpreters == 632);
  CHECK(layout.interpreter_gil == 16);
  CHECK(layout.gil_locked == 16);
  CHECK(layout.gil_holder == 8);
  CHECK(layout.thread_native_id == 160);
  CHECK(layout.frame_slots == 72);
  CHECK(layout.code_adaptive == 200);
  CHECK(layout.string_compact_data == 56);
  // Not told by the target, but its code objects are as large as those of the known layout.
  CHECK(layout.code_exceptions == known_layout(13)->code_exceptions);
}

TEST_CASE("what the target does not tell is left out if its structures are others") {
  auto fields = kFields;
  fields[31] = 224;  // size of a code object
  const DebugOffsets offsets = read_debug_offsets(runtime(0x030d05f0, 0, fields));
  REQUIRE(offsets.layout);
  CHECK(offsets.layout->code_exceptions == -1);
  CHECK(offsets.layout->code_stack_size == -1);
  CHECK(offsets.layout->type_cached_keys == known_layout(13)->type_cached_keys);
}

TEST_CASE("offsets that cannot be are refused") {
  CHECK_FALSE(read_debug_offsets({}).layout);
  CHECK_FALSE(read_debug_offsets(std::vector<std::byte>(kDebugOffsetsSize)).layout);
  CHECK_FALSE(read_debug_offsets(runtime(0x040d00f0, 0, kFields)).layout);  // Python 4
  CHECK_FALSE(read_debug_offsets(runtime(0x030d00f0, 2, kFields)).layout);  // no such flag
  CHECK_FALSE(read_debug_offsets(runtime(0x036300f0, 0, kFields)).layout);  // 3.99
  CHECK(read_debug_offsets(runtime(0x036300f0, 0, kFields)).version_hex == 0x036300f0);
  for (std::size_t i : {2U, 6U, 20U, 29U, 35U}) {
    auto fields = kFields;
    fields[i] = std::uint64_t{1} << 63;
    CHECK_FALSE(read_debug_offsets(runtime(0x030d00f0, 0, fields)).layout);
  }
  auto fields = kFields;
  fields[14] = 0;  // locked, before the GIL
  CHECK_FALSE(read_debug_offsets(runtime(0x030d00f0, 0, fields)).layout);
  auto cut = runtime(0x030d00f0, 0, kFields);
  cut.resize(300);
  CHECK_FALSE(read_debug_offsets(cut).layout);
}

TEST_CASE("any offsets are taken") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 3000; ++round) {
    auto fields = kFields;
    fields[random() % fields.size()] = random() % 4 == 0 ? random() : random() % 100000;
    const DebugOffsets offsets =
        read_debug_offsets(runtime(0x030d00f0 + (random() % 2 << 16), random() % 2, fields));
    CHECK(offsets.layout.has_value() == offsets.problem.empty());
  }
}
