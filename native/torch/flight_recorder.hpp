#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/reader.hpp"
#include "python/code_place.hpp"
#include "torch/layout.hpp"

// The ring in which torch.distributed notes its operations, read from the memory of a process that goes on.
namespace hangtrace::torch {

using memory::Address;

using Shapes = std::vector<std::vector<std::int64_t>>;

/// One operation, as FlightRecorder<EventType>::Entry has it. Times are nanoseconds since the epoch.
struct RecordedOperation {
  std::uint64_t id = 0;
  std::uint64_t pg_id = 0;
  std::string group;
  std::string description;
  std::uint64_t collective = 0;  // number of the collective in its group
  std::uint64_t p2p = 0;         // number of the point-to-point operation
  std::uint64_t op_id = 0;
  std::string name;  // with the backend: "gloo:all_reduce"
  std::int64_t created = 0;
  std::int64_t timeout_ms = 0;
  bool is_p2p = false;
  std::optional<float> duration_ms;
  std::optional<std::int64_t> started;    // when it was noticed
  std::optional<std::int64_t> completed;  // when it was noticed
  Shapes inputs;
  Shapes outputs;
  std::vector<std::uint8_t> input_dtypes;  // c10::ScalarType
  std::vector<std::uint8_t> output_dtypes;
  std::uint64_t thread_id = 0;  // pthread_t of who began it
  std::string thread_name;
  bool retired = false;                   // the backend has let go of it: it has ended, or failed
  std::vector<python::CodePlace> frames;  // of the call, innermost first; empty unless asked for
};

/// Of a group, numbers of collectives; -1: none yet.
struct GroupStatus {
  std::uint64_t pg_id = 0;
  std::int64_t enqueued = -1;
  std::int64_t started = -1;
  std::int64_t completed = -1;
};

struct GroupRanks {
  std::string name;
  std::string description;
  std::vector<std::uint64_t> ranks;
};

enum class Outcome {
  read,
  off,             // it keeps nothing
  never_made,      // nobody has asked for one yet
  unreadable,      // its memory cannot be read
  unknown_layout,  // what lies there is none of the layouts that are known
  moving,          // so much was recorded meanwhile that nothing of it holds
};
const char* name(Outcome outcome);

struct Recording {
  Outcome outcome = Outcome::unreadable;
  const RecorderLayout* layout = nullptr;  // none unless read
  std::uint64_t most = 0;
  std::uint64_t recorded = 0;                 // since it began, or was reset
  std::uint64_t epoch = 0;                    // how often it was reset
  bool whole = false;                         // nothing that was recorded is missing from it
  std::vector<RecordedOperation> operations;  // oldest first
  // Only if all were asked for:
  std::vector<GroupStatus> status;
  std::vector<GroupRanks> ranks;
  std::string library_version;
};

struct Wanted {
  /// Everything; else of each group what has not ended (see `most_open`), the last collective and the last
  /// point-to-point operation.
  bool all = false;
  bool frames = false;
  /// Of one group, if not all are wanted: the oldest ones and the newest.
  std::size_t most_open = 16;
};

/// The recorder that the pointer at `instance` leads to.
Recording read_recorder(const memory::Reader& memory, Address instance, const Wanted& wanted);

}  // namespace hangtrace::torch
