#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "unwind/registers.hpp"
#include "unwind/stack_memory.hpp"

namespace hangtrace::unwind {

using Code = std::span<const std::uint8_t>;

/// The call instruction that ends at an address, by the bytes before it. Several readings can be possible.
struct CallInstruction {
  std::optional<Address> direct;  // target of a call with an offset
  std::optional<Address> slot;    // address of the pointer that is called
  bool indirect = false;          // through a register or other memory, or that of `slot` by a register
  bool any() const { return direct || slot || indirect; }
};

/// A jump out of a function's code.
struct Jump {
  enum class Kind {
    always,       // to the target, which can be a stub
    conditional,  // to the target
    pointer,      // to where the pointer at the target leads
    computed,     // to anywhere; the target is where the jump is
    as_return,    // to anywhere: a return to an address that was just put on the stack, as in retpolines
  };
  Kind kind;
  Address target;
  Address from = 0;  // where the jump is; the end of the function that may go on there
};

/// What the begin of a function does to the stack after it has set its frame pointer.
struct Prologue {
  bool sets_frame_pointer = false;
  std::uint64_t below = 0;      // bytes from the frame pointer down to the stack pointer, at least
  std::uint64_t alignment = 0;  // the stack pointer was aligned to this after the frame pointer was set; 0 no
  std::uint64_t realigned = 0;  // the same before, and a copy of the return address was pushed there; 0 no
  bool exact = false;           // but for the alignment, the distance is certain
  bool dynamic = false;         // the function seems to move the stack pointer by a variable amount
};

/// What the code from a function's begin to a place in it has done to the stack.
struct EntryPath {
  struct Saved {
    unsigned number;      // DWARF's, of a register that was pushed
    std::uint64_t below;  // where: bytes below the stack pointer at the begin
  };
  /// Every instruction is known, none before is jumped to with another stack pointer: the place is `below`
  /// under the stack pointer at the begin.
  bool exact = false;
  std::uint64_t below = 0;  // at least, if not exact
  std::vector<Saved> saved;
  /// Where the frame pointer was set, if it was saved before and on every way.
  std::optional<std::uint64_t> frame_pointer_below;
};

/// What must be recognised in a machine's code to check and repair a stack. Each function is given bytes,
/// and the address at which the first of them lies, or the one after the last.
class MachineCode {
 public:
  virtual ~MachineCode() = default;
  /// How many bytes before a return address are looked at: as many as can be had of `longest_call`, no fewer
  /// than `shortest_call`.
  std::size_t longest_call;
  std::size_t shortest_call;
  virtual CallInstruction call_ending_at(Code before, Address next) const = 0;
  /// Where the pointer lies through which an entry of the procedure linkage table jumps.
  virtual std::optional<Address> stub_slot(Code code, Address at) const = 0;
  /// All jumps of a function, among them a conditional one to its end if it may go on there; false if it is
  /// not understood.
  virtual bool find_jumps(Code function, Address at, std::vector<Jump>& into) const = 0;
  /// `before`: from the function's begin up to the PC, or, if not `whole`, as much of it as is looked at;
  /// `after`: from there to its end.
  virtual Prologue read_prologue(Code before, bool whole, Code after) const = 0;
  /// `before`: the function from its begin up to the PC, `after`: from there to its end.
  virtual EntryPath read_entry(Code before, Code after) const = 0;
  /// Whether a system call ends the code, by which the registers stay what they are.
  virtual bool ends_in_system_call(Code code) const = 0;
  /// Whether the code is that to which the kernel lets signal handlers return: nobody calls it.
  virtual bool is_signal_trampoline(Code code) const = 0;
  /// What the kernel saved on the stack when it called the handler; `sp`: stack pointer at the trampoline.
  virtual std::optional<Registers> interrupted(const StackMemory& memory, Address sp) const = 0;
  /// The registers after the return, if the code does nothing from here to its return but take its frame off
  /// the stack; nullopt if it may do anything else. `code`: from the PC on.
  virtual std::optional<Registers> straight_return(Code code, const Registers& registers,
                                                   const StackMemory& memory) const = 0;

  // How the C library calls the function that a thread or the process was started with.

  /// Of the thread's descriptor, where the pointer lies which the call that ends `before` calls; nullopt if
  /// that is another call.
  virtual std::optional<Address> start_field(Code) const { return std::nullopt; }
  /// Whether glibc's descriptor of a thread lies there.
  virtual bool is_thread_descriptor(const StackMemory&, Address) const { return false; }
  /// Whether the process exits with what a call returned. `after`: from the return address on.
  virtual bool exits_with_result(Code) const { return false; }
  /// Where the process's entry, whose code lies at the address, has main: `direct` or in `slot`.
  virtual CallInstruction main_function(Code, Address) const { return {}; }

 protected:
  MachineCode(std::size_t longest, std::size_t shortest) : longest_call(longest), shortest_call(shortest) {}
};

inline constexpr std::size_t longest_stub = 24;
inline constexpr std::size_t longest_trampoline = 16;
inline constexpr std::size_t longest_straight_return = 32;
inline constexpr std::size_t longest_start_call = 16;

const MachineCode& x86_64_code();   // x86_64/
const MachineCode& aarch64_code();  // aarch64/
/// Null for machines without evaluator.
const MachineCode* machine_code(elf::Machine machine);

}  // namespace hangtrace::unwind
