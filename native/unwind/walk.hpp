#pragma once

#include <optional>
#include <vector>

#include "elf/symbols.hpp"
#include "unwind/call_site.hpp"
#include "unwind/prologue.hpp"
#include "unwind/stack_memory.hpp"
#include "unwind/table_cache.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::unwind {

/// Work left for one thread, shared by all attempts to repair its stack.
struct Budget {
  int frames = 20000;
  int words = 40000;  // of stack searched
};

/// What a walk needs besides registers.
struct WalkContext {
  elf::ProcessModules& modules;
  TableCache& tables;
  NearRows& rows;
  CallResolver& calls;
  const StackMemory& memory;
  const Options& options;
  Budget& budget;
  const Layout& layout;
  Address address_mask;  // the bits of a return address that are none of a signature
};

/// One walk from a set of registers to the outermost frame it can reach. Repairs try further walks from
/// guessed registers, `depth` deep.
class Walk {
 public:
  Walk(const WalkContext& context, int depth) : context_(context), depth_(depth) {}
  /// `exact_pc`: the PC is that of an instruction which did not run yet, not a return address.
  Stack run(Registers registers, bool exact_pc, FoundBy found_by);

 private:
  struct Computed {
    std::optional<Address> cfa;
    bool unknown_register = false;
  };
  struct Caller {
    Registers registers;
    std::optional<End> problem;
  };
  struct Repair {
    Registers registers;
    FoundBy found_by;
  };
  struct Candidate {
    Address frame_pointer;
    Address cfa;
    Address slot;  // where the return address lies
    Link link;
  };
  /// What speaks against a candidate.
  struct Verdict {
    bool possible = false;
    bool complete = false;  // it leads to the thread's start
    Address end = 0;        // of the frame of the function that the thread was started with; 0: not known
  };

  Computed compute_cfa(const Row& row, const Registers& registers) const;
  /// `exact_pc`: as for run(); only then a return address may still be in the link register.
  Caller step(const Row& row, const Registers& registers, Address cfa, bool exact_pc) const;
  std::optional<std::uint64_t> apply(const Rule& rule, const Row& row, const Registers& registers,
                                     Address cfa) const;
  std::optional<Registers> from_signal_trampoline(const elf::Location& location, Address sp) const;
  bool is_thread_entry(const Frame& frame) const;

  // repair.cpp
  bool can_repair() const;
  std::optional<Repair> repair_frame_pointer(const Frame& frame, const Row& row, const Registers& registers);
  /// `there`: the PC itself.
  std::optional<Registers> caller_without_table(const Frame& frame, const elf::Location& there,
                                                const Registers& registers, bool exact_pc);
  std::optional<Registers> caller_by_entry(const elf::Location& there, const elf::Symbol& function,
                                           const Registers& registers, bool exact_pc);
  std::optional<Candidate> candidate(const Frame& frame, const Row& row, const Registers& registers,
                                     const Prologue& prologue, Address value);
  /// The only place in the rest of the stack at which the frame can end.
  std::optional<Candidate> search(const Frame& frame, const Row& row, const Registers& registers,
                                  const Prologue& prologue, Address lowest);
  Verdict judge(const Frame& frame, const Row& row, const Registers& registers, const Candidate& candidate);

  // start.cpp
  /// The function that the frame, one of a complete stack, called, if that is what the thread or the process
  /// was started with.
  std::optional<Address> started_function(const Stack& stack, std::size_t frame) const;
  std::optional<Address> thread_function(const Frame& caller) const;
  std::optional<Address> main_function(const Frame& caller, const Frame& entry) const;

  const WalkContext& context_;
  int depth_;
  Address bias_ = 0;            // of the frame that is looked at
  bool ended_at_zero_ = false;  // instead of a return address
};

}  // namespace hangtrace::unwind
