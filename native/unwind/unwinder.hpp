#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "elf/process_modules.hpp"
#include "memory/reader.hpp"
#include "unwind/registers.hpp"

namespace hangtrace::unwind {

/// How a frame was reached from the one it called.
enum class FoundBy {
  leaf,      // the thread's own PC
  cfi,       // unwind tables and known registers
  prologue,  // frame pointer computed from the function's prologue, or a frame that the code ahead takes off
             // the stack before it returns; checked by the call before the return address
  scan,      // searched on the stack, checked by the call before the return address and the way to the start
};

enum class End {
  thread_start,  // the outermost frame was reached: the stack is complete
  no_call,       // what the table calls a return address does not follow a call
  no_code,       // PC points to nothing executable
  no_table,      // code without unwind table
  bad_table,     // unwind table that cannot be used
  unknown_register,
  unreadable,   // stack memory could not be read
  no_progress,  // the stack pointer does not move: corrupt or recursive table
  too_deep,
  unsupported,  // machine without evaluator
};

struct Frame {
  Address pc;
  Address sp;           // stack pointer on entry of the caller's next instruction (CFA); 0 unknown
  elf::Module* module;  // null: code without file
  Address bias;         // pc - bias is the va of the pc in module
  Address
      va;  // for symbols: va of the PC (leaf, and frames interrupted by a signal) or of the byte before it
  FoundBy found_by;
  bool signal_frame;  // the kernel's signal trampoline
};

struct Stack {
  std::vector<Frame> frames;  // innermost first
  End end = End::no_code;
  bool beyond_copy = false;  // memory outside of the copy was read for it
  bool complete() const { return end == End::thread_start; }
};

/// Why a stack is not complete, for people; empty for thread_start.
std::string describe(End end);

struct StackCopy {  // memory already copied, from the stack pointer on
  Address base = 0;
  std::span<const std::byte> bytes;
  bool only = false;  // what lies beyond is not read: the thread has run since the copy was made
};

struct Options {
  std::size_t max_frames = 4096;  // up to 3.10 each of the 1000 calls that Python allows takes three
  bool repair = true;             // prologue arithmetic and stack scan where a needed register is unknown
};

class TableCache;    // unwind/table_cache.hpp
class NearRows;      // the same
class CallResolver;  // unwind/call_site.hpp

/// Unwinding rows and frame tables of all modules, from several threads; lives as long as the ModuleCache.
class UnwindCache {
 public:
  UnwindCache();
  ~UnwindCache();
  UnwindCache(const UnwindCache&) = delete;
  UnwindCache& operator=(const UnwindCache&) = delete;
  TableCache& tables() { return *tables_; }

 private:
  std::unique_ptr<TableCache> tables_;
};

/// Unwinds threads of one process, in one look, by one thread of ours. Everything referred to must outlive
/// it.
class Unwinder {
 public:
  Unwinder(elf::ProcessModules& modules, UnwindCache& cache, Options options = {});
  ~Unwinder();
  Unwinder(const Unwinder&) = delete;
  Unwinder& operator=(const Unwinder&) = delete;
  /// All registers that are known of a thread which waits in a system call with these arguments, as the
  /// kernel tells them with PC and SP; those two alone if the PC does not follow a system call.
  Registers in_system_call(Address pc, Address sp, std::span<const std::uint64_t, 6> arguments,
                           const Layout& layout = host_layout) const;
  /// Memory outside `copy` is read through the reader of the modules.
  Stack unwind(const Registers& start, StackCopy copy) const;

 private:
  elf::ProcessModules& modules_;
  UnwindCache& cache_;
  Options options_;
  std::unique_ptr<CallResolver> calls_;
  std::unique_ptr<NearRows> rows_;
  mutable int words_left_;   // of stack that may be searched, for all threads together
  mutable int frames_left_;  // the same for frames, those of attempts to repair included
};

}  // namespace hangtrace::unwind
