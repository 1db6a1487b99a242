#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

// Where things lie in c10d::FlightRecorder<EventType> (torch/csrc/distributed/c10d/FlightRecorder.hpp),
// 64-bit, with the types of libstdc++ in its new ABI. Offsets and sizes in bytes, -1 for what a version does
// not have.
namespace hangtrace::torch {

/// FlightRecorder<EventType>::Entry.
struct EntryLayout {
  int size;
  int id;
  int epoch;  // reset_epoch_
  int pg_id;
  int description;  // a std::tuple lies in memory last element first
  int group;
  int collective;  // collective_seq_id_
  int p2p;         // p2p_seq_id_
  int op_id;
  int name;  // profiling_name_
  int traceback;
  int created;
  int timeout;
  int is_p2p;
  int duration;  // std::optional<float>
  int started;   // std::optional<std::int64_t>
  int completed;
  int input_dims;    // c10::SmallVector<std::int64_t, 4>
  int input_dtypes;  // std::vector<c10::ScalarType>
  int output_dims;
  int output_dtypes;
  int sizes;  // c10::SmallVector<std::int64_t, 8>
  int thread_id;
  int thread_name;
  int retired;
};

/// FlightRecorder<EventType>, by what stands before its ring.
struct RecorderLayout {
  std::string_view name;  // the releases of torch that have it
  int size;
  int enabled;
  int mutex;            // its first word is not 0 while somebody has it
  int ring;             // std::vector<Entry>, then max_entries_, next_, id_
  int epoch;            // reset_epoch_
  int status;           // all_pg_status_
  int ranks;            // pg_name_to_ranks_
  int library_version;  // comm_lib_version_
  EntryLayout entry;
};

/// All that are known. Which one a process has is told by its memory alone, never by a version.
std::span<const RecorderLayout> known_layouts();

/// Where the recorder of each backend is found: the symbol of the pointer to it, which is static in its
/// get().
struct RecorderSymbol {
  std::string_view library;  // the file's name begins with it
  std::string_view symbol;
};
std::span<const RecorderSymbol> recorder_symbols();

/// c10::toString(c10::ScalarType); empty if the number is not known.
std::string_view dtype_name(std::uint8_t number);

}  // namespace hangtrace::torch
