#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "memory/reader.hpp"
#include "proc/maps.hpp"
#include "python/async_tasks.hpp"
#include "python/code_place.hpp"
#include "python/objects.hpp"
#include "python/runtime.hpp"
#include "python/values.hpp"

// What another process's CPython runs, read from its memory without stopping it. Nothing here throws;
// whatever cannot be read or does not look right is left out and named in a `problem`.
namespace hangtrace::python {

// Thread ids as the program sees them (inside its pid namespace) -> as we see them. With it, an id that is
// not in the map is not believed. Empty: ids are taken as they are.
using ThreadIds = std::unordered_map<int, int>;

struct PythonFrame {
  std::string function;  // qualified name from 3.11 on, plain name before
  std::string file;
  int line = 0;  // 0: unknown
  Address frame = 0;
  Address code = 0;
  bool entry = false;      // entered from C: exactly one native _PyEval_EvalFrameDefault belongs to it
  bool generator = false;  // frame of a generator, coroutine or async generator (3.11+)

  // Locals, cells and value stack as they were (tag bits removed); values above the stack's top are stale.
  // Empty where they were not read.
  std::vector<Address> slots;
  std::size_t first_stack_slot = 0;
  // So many stack slots are certainly in use: an exception handler around the instruction needs them.
  std::size_t live_stack = 0;
};

struct PythonThread {
  int native_tid = 0;            // as we see it; 0: unknown
  std::uint64_t ident = 0;       // threading.get_ident(): the pthread_t
  std::string name;              // Thread.name from threading._active; "": unknown
  std::int64_t interpreter = 0;  // in which it runs now; frames further out may be of the one it came from
  bool holds_gil = false;
  std::vector<PythonFrame> frames;  // innermost first
  std::size_t left_out = 0;         // frames between the innermost and the outermost ones
  std::string problem;              // "": the frames are whole, but for those
  // Where on its C stack the innermost frame was entered from C, roughly (since 3.10); 0: not known.
  Address on_c_stack = 0;
};

struct Gil {
  Address address = 0;   // a thread whose futex lies in [address, address + size) waits for the GIL
  std::size_t size = 0;  // bytes
  bool locked = false;
  int holder_tid = 0;            // 0: unknown or not locked
  std::int64_t interpreter = 0;  // 3.8-3.11: one GIL for all interpreters, named with the first
};

struct PythonState {
  std::string version;  // "3.11.7"
  bool free_threaded = false;
  std::vector<PythonThread> threads;
  std::vector<Gil> gils;  // empty: free-threaded with its GIL off, or unreadable (then `problem`)
  PythonTasks tasks;
  std::string layout_from;  // "_Py_DebugOffsets" or "table 3.11", ", untested build" behind
  std::string problem;      // "": all was read
};

// A semaphore of multiprocessing, which processes share; each has an object of its own for it, and counts in
// it what its own threads have taken and not given back (Modules/_multiprocessing/semaphore.c).
struct SharedSemaphore {
  Address object = 0;
  Address handle = 0;            // of the sem_t
  std::uint64_t last_ident = 0;  // who of this process took it last
  int count = 0;
  int most = 0;            // its greatest value
  bool recursive = false;  // multiprocessing.RLock: only who took it can give it back
};

enum class LockOwnerFrom {
  nowhere,        // CPython records no owner for it, or it is not held
  rlock_owner,    // exact: the owner field of an RLock
  module_lock,    // exact: `owner` of importlib's lock of a module that is being imported
  joined_thread,  // exact: Thread.join() waits for the end of that thread
  with_block,     // strong: a thread stands inside `with` of this very lock
  running_block,  // the same of one that runs, whose frames were read while it may have left them
  shared_rlock,   // exact: count and last_tid of multiprocessing's RLock
  shared_lock,    // strong: the same of its Lock, which another one may give back
};

struct LockFacts {
  Address object = 0;     // of the lock, _ModuleLock or Thread; 0: not found (see problem)
  std::string type_name;  // "_thread.lock", "_thread.RLock", "_ModuleLock", "Thread" or a subclass
  bool recursive = false;
  std::uint64_t owner_ident = 0;
  int owner_tid = 0;        // 0: unknown, or no thread of this process has that ident
  std::uint64_t count = 0;  // how often an RLock is held
  LockOwnerFrom owner_from = LockOwnerFrom::nowhere;
  std::string owner_function;  // with_block: where it is held
  std::string owner_file;
  int owner_line = 0;
  std::string module;                     // module_lock: what is imported
  std::optional<SharedSemaphore> shared;  // of multiprocessing; `object` is its
  bool shared_lock = false;               // it is known to be taken as multiprocessing.Lock
  std::string problem;                    // why no owner is named
};

// One CPython process. Keep it between looks: code objects are cached by address, and each look checks that
// they are still the same. Make a new one after an exec. Not thread safe.
class PythonProcess {
 public:
  // nullopt if no module of the process exports a CPython runtime. A runtime of a version without layout
  // gives an object whose read() says so. `reader` must outlive the object.
  static std::optional<PythonProcess> attach(const memory::Reader& reader,
                                             std::span<const proc::Mapping> mappings,
                                             const SymbolFinder& find);

  PythonProcess(PythonProcess&&) noexcept;
  PythonProcess& operator=(PythonProcess&&) noexcept;
  ~PythonProcess();

  const std::string& version() const;
  Address runtime() const;

  // All threads of all interpreters, each once, frames and GILs. nullopt: nothing at all could be read (see
  // problem()).
  std::optional<PythonState> read(const ThreadIds& tids = {});
  const std::string& problem() const;

  // The Python lock that `waiter` sleeps on at `futex` (first argument of its futex call, under
  // PyThread_acquire_lock* or _PyParkingLot_Park), and its owner if one can be named. `not_asleep`: tids that
  // ran while we looked, so that their frames prove nothing by themselves (running_block). Threads
  // that wait for the lock need not be among them: only what a handler around their current instruction
  // needs counts, and the `with` that a thread is about to enter has none yet.
  LockFacts describe_lock(const PythonState& state, const PythonThread& waiter, Address futex,
                          std::span<const int> not_asleep);

  // The word by which code that a thread stands in could let others go on ("release", "cancel"), of its
  // innermost functions outside of the standard library; "": none.
  std::string lets_go(const PythonThread& thread);
  // The same of a task that waits, of the coroutines that it is in.
  std::string lets_go(const PythonTask& task);

  // A semaphore of multiprocessing at an address that may hold anything; nullopt: it is none.
  std::optional<SharedSemaphore> shared_semaphore(Address object);
  // Those of whose multiprocessing.Lock or RLock a thread stands in a `with` block.
  std::vector<SharedSemaphore> entered_semaphores(const PythonState& state);

  // A local variable (also cell or free variable) of thread.frames[index]; nullopt: no such name, or unset.
  std::optional<SimpleValue> frame_local(const PythonThread& thread, std::size_t index,
                                         std::string_view name);

  // A local variable (as above) or, with dots, an attribute reached from it through instance dictionaries and
  // slots: "self.lock". "fs[].name": of each member of the container `fs`, see ValueReader::each. nullopt: a
  // name is not there, or unset.
  std::optional<Value> local_value(const PythonThread& thread, std::size_t index, std::string_view dotted);

  // The same of a frame of a suspended task.
  std::optional<Value> task_value(const TaskFrame& frame, std::string_view dotted);

  // The same from globals of an imported module: "torch.distributed.distributed_c10d", {"_world.default_pg"}.
  std::vector<std::optional<Value>> global_values(std::string_view module, std::span<const std::string> names,
                                                  ValueLimits limits);

  // An attribute in the instance dictionary of an object (an OpaqueValue's address); slots and properties are
  // not looked at.
  std::optional<SimpleValue> attribute(Address object, std::string_view name);

  // A global of an imported module, e.g. ("torch.version", "__version__").
  std::optional<SimpleValue> module_global(std::string_view module, std::string_view name);

  // What stands at these places of code, in the same order.
  std::vector<std::vector<CodeLine>> code_lines(std::span<const std::vector<CodePlace>> places);

  // os.environ as the program sees it now; only the asked names; {} if os is not imported or unreadable.
  std::map<std::string, std::string> environ(std::span<const std::string> names);
  std::vector<std::string> argv();                                               // sys.argv
  std::vector<std::string> imported(std::span<const std::string> module_names);  // those in sys.modules

  struct State;  // of the implementation

 private:
  explicit PythonProcess(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace hangtrace::python
