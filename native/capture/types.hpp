#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "locks/decode.hpp"
#include "memory/reader.hpp"
#include "python/values.hpp"
#include "registers/status.hpp"

// One look at a group of processes, as plain data.
namespace hangtrace::capture {

using memory::Address;

enum class FrameKind { python, native };
enum class FoundBy { leaf, cfi, prologue, scan, python, call_site };

/// In place of a file: code made at run time, named by the program's perf map.
inline constexpr std::string_view jit_module = "[jit]";

struct Frame {
  FrameKind kind = FrameKind::native;
  std::string function;  // empty: nobody can name it
  std::string file;      // Python only
  int line = 0;          // Python only; 0 unknown
  std::string module;    // native only; path as mapped, or jit_module
  Address address = 0;   // native only
  FoundBy found_by = FoundBy::leaf;
  friend bool operator==(const Frame&, const Frame&) = default;
};

struct NamedValue {
  std::string function;
  std::string name;
  std::optional<python::Value> value;  // nullopt: not there, or unset
};

enum class StackFrom { none, pc_sp, repaired, bpf, perf, stop };

/// What several samples of a running thread have in common.
struct Samples {
  std::size_t count = 0;
  bool same_leaf = false;           // all in the same innermost function
  bool same_stack = false;          // and called in the same way: all return addresses are equal
  std::vector<std::string> leaves;  // the innermost functions, in the order they were first seen
};

struct Thread {
  int tid = 0;
  std::string comm;
  char state = '?';
  std::optional<std::string> wait_channel;
  std::optional<std::int64_t> syscall;  // nullopt: running or unreadable; -1: blocked outside of a call
  std::array<std::uint64_t, 6> arguments{};
  std::optional<Address> stack_pointer;
  std::optional<Address> program_counter;
  std::optional<std::uint64_t> run_ns;
  std::optional<std::uint64_t> slices;
  std::uint64_t start_ticks = 0;
  int cpu = -1;
  std::uint64_t user_ticks = 0;
  std::uint64_t system_ticks = 0;
  std::uint64_t minor_faults = 0;
  std::uint64_t major_faults = 0;
  bool moved = false;
  bool running = false;
  std::vector<Frame> frames;
  std::vector<Frame> unmerged_python;
  StackFrom stack_from = StackFrom::none;
  bool complete = false;
  std::string stack_problem;
  std::string python_problem;  // why Python's frames are not whole; empty: they are
  std::optional<Samples> samples;
  std::optional<std::string> python_name;
  std::optional<std::uint64_t> ident;
  bool holds_gil = false;
  std::optional<locks::Lock> lock;
  std::vector<std::string> kernel_stack;
  std::vector<NamedValue> named_values;
  std::vector<std::string> nap_loop;  // functions that the loop around its nap calls
  std::string lets_go;  // of a Python thread that naps: how its code could let others go on; "": in no way
};

struct Gil {
  Address address = 0;
  bool locked = false;
  std::optional<int> holder;
};

struct Python {
  std::string version;
  std::string layout_from;
  bool free_threaded = false;
  std::optional<Gil> gil;
  std::string problem;
  std::size_t thread_count = 0;
};

enum class TaskKind { asyncio, greenlet };

/// The object of asyncio in one of whose methods a task is suspended; see python::TaskObject.
struct TaskObject {
  std::string kind;    // "semaphore", "queue", ...
  std::string method;  // "get", "join", ...
  Address address = 0;
  std::optional<std::int64_t> count;
  std::optional<std::int64_t> limit;
};

/// A piece of work that the program itself switches to: an asyncio task or a suspended greenlet.
struct Task {
  TaskKind kind = TaskKind::asyncio;
  Address address = 0;
  std::string name;
  std::optional<int> tid;  // thread whose event loop it belongs to
  bool current = false;
  bool done = false;
  bool moved = false;     // its thread ran while this picture was taken: nothing here is sure
  std::string exception;  // done: type of the exception that ended it
  std::string awaits;     // empty: not known, or nothing
  std::optional<Address> awaits_object;
  std::optional<TaskObject> object;
  std::vector<Address> needs;  // see python::PythonTask, also for those below
  bool needs_known = false;
  std::optional<Address> lock;
  std::vector<Address> holds;
  std::optional<Address> computes;
  std::optional<double> wakes_in_s;  // by a timer of its own
  std::string lets_go;               // by which word its code could let others go on; empty: none
  std::vector<Frame> frames;         // innermost first
  std::vector<NamedValue> named_values;
  std::string problem;  // why frames are not whole
};

enum class Error {
  none,
  gone,
  not_permitted,
  mmap_lock_held,
  kernel_thread,
  zombie,
  bits32,
  unreadable,
  no_time,  // the time for the whole look was over before it, or all its threads, had their turn
};

/// In place of the reason why a stack ends.
inline constexpr const char* no_time_left = "no time was left";

/// A way to get at registers that this process needed: its name in the report, and what became of it.
struct Rung {
  const char* source = "";
  registers::RungStatus status;
};

struct Process {
  int pid = 0;
  Error error = Error::none;
  std::optional<int> error_tid;
  bool exec_changed = false;
  std::vector<Thread> threads;  // by tid
  std::optional<Python> python;
  std::vector<Task> tasks;
  std::size_t tasks_left_out = 0;
  std::vector<std::string> notes;
  std::vector<Rung> rungs;
  std::uint64_t stopped_ns = 0;  // by us, its threads together
};

struct Options {
  bool python = true;
  bool stacks = true;
  bool bpf = true;
  bool running = true;    // take stacks of threads that run, by samples on the CPU they are on
  std::vector<int> stop;  // processes whose threads may be stopped for a moment
  std::map<std::string, std::vector<std::string>> named_locals;  // function -> names
  std::size_t workers = 0;                                       // threads that look; 0: as many as pay
  /// Called before a process is looked at, by the thread that does, in order and one at a time.
  std::function<void(int)> on_process;
  /// Then no further memory is read and no further stack unwound; what is there comes back.
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();

  bool out_of_time() const { return std::chrono::steady_clock::now() >= until; }
};

}  // namespace hangtrace::capture
