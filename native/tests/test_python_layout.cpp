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

// _Py_DebugOffsets of other builds, from their memory too; the groups are those of the headers.
const std::vector<std::uint64_t> kFields313t = {  // 3.13.5, --disable-gil
    328320, 608, 632, 215616, 7272, 7264, 7344, 7400, 7664, 7648, 7656, 16,  7760, 0,  7784, 7776, 304,
    0,      8,   16,  72,     152,  160,  232,  32,   80,   8,    0,    56,  72,   70, 224,  128,  136,
    144,    152, 84,  68,     112,  120,  216,  32,   24,   432,  40,   104, 184,  48, 40,   32,   56,
    40,     32,  64,  48,     56,   40,   32,   48,   32,   40,   56,   32,  48,   80, 48,   32,   56};
const std::vector<std::uint64_t> kFields314 = {  // 3.14.10
    316616, 784,  808, 225864, 7280, 7272, 7344, 7360, 7408, 7688, 7672, 7680, 16,  7784, 0,  7800,
    7792,   7992, 0,   832,    0,    8,    16,   72,   152,  160,  232,  32,   88,  8,    0,  56,
    80,     74,   64,  0,      216,  112,  120,  128,  136,  68,   52,   96,   104, 208,  0,  16,
    8,      416,  24,  88,     168,  40,   32,   16,   40,   24,   16,   200,  24,  40,   32, 48,
    32,     40,   24,  16,     32,   16,   24,   40,   16,   32,   64,   32,   16,  40};
const std::vector<std::uint64_t> kFields315 = {  // 3.15.2
    346568, 912,  936, 226240, 7272, 7264, 7336, 7352, 7400, 7592, 7576, 7584, 16,  7736, 0,   7752,
    7744,   7944, 0,   888,    0,    8,    16,   72,   80,   88,   96,   176,  184, 256,  32,  36,
    40,     136,  288, 0,      88,   8,    0,    56,   80,   74,   64,   0,    216, 112,  120, 128,
    136,    68,   52,  96,     104,  208,  0,    16,   8,    424,  24,   88,   168, 32,   288, 944,
    888,    40,   32,  16,     40,   24,   16,   200,  24,   40,   32,   48,   32,  40,   24,  16,
    32,     16,   24,  40,     16,   32,   64,   32,   16,   40,   56};

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
  for (int minor = 8; minor <= 15; ++minor) {
    const Layout* layout = known_layout(minor);
    REQUIRE(layout != nullptr);
    CHECK(layout->object_size == 16);
    CHECK(layout->object_type == 8);
    CHECK(layout->code_first_line > 0);
    CHECK((layout->thread_frame >= 0) != (layout->thread_cframe >= 0));
    CHECK((layout->interpreter_gil >= 0) == (minor >= 12));
    CHECK((layout->frame_owner >= 0) == (minor >= 11));
  }
  for (int minor = 13; minor <= 15; ++minor) {
    const Layout* layout = known_layout(minor, true);
    REQUIRE(layout != nullptr);
    CHECK(layout->free_threaded);
    CHECK(layout->object_size == 32);
    CHECK(layout->object_type == 24);
    CHECK((layout->code_tlbc >= 0) == (minor >= 14));
  }
  CHECK(known_layout(12, true) == nullptr);
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

TEST_CASE("what a build tells is what its headers say") {
  struct Build {
    std::uint64_t version;
    std::uint64_t free_threaded;
    const std::vector<std::uint64_t>& fields;
  };
  for (const Build& build : {Build{0x030d05f0, 1, kFields313t}, Build{0x030d00f0, 0, kFields},
                             Build{0x030e0af0, 0, kFields314}, Build{0x030f02f0, 0, kFields315}}) {
    const DebugOffsets offsets =
        read_debug_offsets(runtime(build.version, build.free_threaded, build.fields));
    CHECK(offsets.problem == "");
    REQUIRE(offsets.layout);
    Layout told = *offsets.layout;
    Layout known = *known_layout(told.minor, build.free_threaded == 1);
    // These changed from 3.13.0, of which the headers are, to 3.13.5.
    told.runtime_interpreters = known.runtime_interpreters = 0;
    told.interpreter_size = known.interpreter_size = 0;
    CHECK(std::memcmp(&told, &known, sizeof known) == 0);
  }
}

TEST_CASE("offsets outside of their structures are refused") {
  auto fields = kFields315;
  fields[57 + 4] = 424;  // tp_basicsize: behind the end of PyTypeObject
  CHECK_FALSE(read_debug_offsets(runtime(0x030f02f0, 0, fields)).layout);
}

TEST_CASE("alphas and betas are refused") {
  CHECK_FALSE(read_debug_offsets(runtime(0x030f00a1, 0, kFields315)).layout);
  CHECK_FALSE(read_debug_offsets(runtime(0x030f00b4, 0, kFields315)).layout);
  CHECK(read_debug_offsets(runtime(0x030f00c1, 0, kFields315)).layout);
  CHECK_FALSE(read_debug_offsets(runtime(0x031000f0, 0, kFields315)).layout);  // 3.16
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
        read_debug_offsets(runtime(0x030d00f0 + (random() % 3 << 16), random() % 2, fields));
    CHECK(offsets.layout.has_value() == offsets.problem.empty());
  }
}
