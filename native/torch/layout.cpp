#include "torch/layout.hpp"

#include <array>

namespace hangtrace::torch {

namespace {

// The mutex is a pthread_mutex_t: 40 bytes on x86-64 and riscv64, 48 on aarch64.
constexpr std::array<int, 2> mutex_sizes = {40, 48};

// Of torch 2.8 and 2.9. Since 2.10 an entry has a reset epoch behind its id, and all else moved by a word.
constexpr EntryLayout entry_layout(bool has_epoch) {
  const int shift = has_epoch ? 8 : 0;
  return {
      .size = 504 + shift,
      .id = 0,
      .epoch = has_epoch ? 8 : -1,
      .pg_id = 8 + shift,
      .description = 16 + shift,
      .group = 48 + shift,
      .collective = 80 + shift,
      .p2p = 88 + shift,
      .op_id = 96 + shift,
      .name = 104 + shift,
      .traceback = 136 + shift,
      .created = 168 + shift,
      .timeout = 176 + shift,
      .is_p2p = 184 + shift,
      .duration = 188 + shift,
      .started = 200 + shift,
      .completed = 216 + shift,
      .input_dims = 232 + shift,
      .input_dtypes = 280 + shift,
      .output_dims = 304 + shift,
      .output_dtypes = 352 + shift,
      .sizes = 376 + shift,
      .thread_id = 456 + shift,
      .thread_name = 464 + shift,
      .retired = 496 + shift,
  };
}

// Since 2.10 the reset epoch and the map of where each began (56 bytes) stand behind the ring's numbers.
constexpr RecorderLayout recorder_layout(bool has_epoch, int mutex_size) {
  const int ring = 8 + mutex_size;
  const int numbers_end = ring + 48;
  const int status = numbers_end + (has_epoch ? 64 : 0);
  return {
      .name = has_epoch ? "torch 2.10 to 2.15" : "torch 2.8, 2.9",
      .size = status + 48 + 48 + 32,
      .enabled = 0,
      .mutex = 8,
      .ring = ring,
      .epoch = has_epoch ? numbers_end : -1,
      .status = status,
      .ranks = status + 48,
      .library_version = status + 96,
      .entry = entry_layout(has_epoch),
  };
}

constexpr std::array<RecorderLayout, 4> layouts = {
    recorder_layout(true, mutex_sizes[0]),
    recorder_layout(false, mutex_sizes[0]),
    recorder_layout(true, mutex_sizes[1]),
    recorder_layout(false, mutex_sizes[1]),
};

// By the event type of the backend: c10::Event, and what CUDA's is called (at::cuda until 2.13).
constexpr std::array<RecorderSymbol, 4> symbols = {{
    {"libtorch_cpu.so", "_ZZN4c10d14FlightRecorderIN3c105EventEE3getEvE8instance"},
    {"libtorch_cuda.so", "_ZZN4c10d14FlightRecorderIN2at4cuda9CUDAEventEE3getEvE8instance"},
    {"libtorch_cuda.so", "_ZZN4c10d14FlightRecorderIN3c104cuda9CUDAEventEE3getEvE8instance"},
    {"libtorch_hip.so", "_ZZN4c10d14FlightRecorderIN2at4cuda9CUDAEventEE3getEvE8instance"},
}};

// torch/headeronly/core/ScalarType.h (c10/core/ScalarType.h until 2.8); numbers are never used again.
constexpr auto dtypes = std::to_array<std::string_view>({"Byte",
                                                         "Char",
                                                         "Short",
                                                         "Int",
                                                         "Long",
                                                         "Half",
                                                         "Float",
                                                         "Double",
                                                         "ComplexHalf",
                                                         "ComplexFloat",
                                                         "ComplexDouble",
                                                         "Bool",
                                                         "QInt8",
                                                         "QUInt8",
                                                         "QInt32",
                                                         "BFloat16",
                                                         "QUInt4x2",
                                                         "QUInt2x4",
                                                         "Bits1x8",
                                                         "Bits2x4",
                                                         "Bits4x2",
                                                         "Bits8",
                                                         "Bits16",
                                                         "Float8_e5m2",
                                                         "Float8_e4m3fn",
                                                         "Float8_e5m2fnuz",
                                                         "Float8_e4m3fnuz",
                                                         "UInt16",
                                                         "UInt32",
                                                         "UInt64",
                                                         "UInt1",
                                                         "UInt2",
                                                         "UInt3",
                                                         "UInt4",
                                                         "UInt5",
                                                         "UInt6",
                                                         "UInt7",
                                                         "Int1",
                                                         "Int2",
                                                         "Int3",
                                                         "Int4",
                                                         "Int5",
                                                         "Int6",
                                                         "Int7",
                                                         "Float8_e8m0fnu",
                                                         "Float4_e2m1fn_x2"});

}  // namespace

std::span<const RecorderLayout> known_layouts() {
  return layouts;
}

std::span<const RecorderSymbol> recorder_symbols() {
  return symbols;
}

std::string_view dtype_name(std::uint8_t number) {
  return number < dtypes.size() ? dtypes[number] : std::string_view();
}

}  // namespace hangtrace::torch
