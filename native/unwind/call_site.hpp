#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "elf/process_modules.hpp"
#include "memory/page_reader.hpp"
#include "unwind/machine_code.hpp"
#include "unwind/table_cache.hpp"

namespace hangtrace::unwind {

/// The call instruction that ends at an address.
CallInstruction call_before(const elf::Module& module, Address return_va);

/// How well a return address fits a function as the one that was called.
enum class Link {
  none,      // not a return address, or one of a call that cannot have led to the function
  indirect,  // the target of the call, or where that jumps, is not known, or a signal handler's return to the
             // kernel
  tail_call,  // the target of the call jumps into the function, perhaps through others
  direct,     // calls the function, directly or through its PLT or GOT entry
};

/// Questions about call instructions in one process. GOT entries and code without file that were read are
/// kept, so use one for one look only.
class CallResolver {
 public:
  CallResolver(elf::ProcessModules& modules, TableCache& tables);

  /// Of code which no file tells the machine of; that of the host until then.
  void set_machine(elf::Machine machine) { machine_ = machine_code(machine); }

  /// `begin`, `end`: the function in the process.
  Link link(Address return_address, Address begin, Address end);
  /// The same for code without unwind table around `pc`, whose begin is unknown. The caller may have no table
  /// either.
  Link link_to_unknown(Address return_address, Address pc);
  /// The same for a function without unwind table that begins at `begin`, where a call must enter it.
  Link link_to_begin(Address return_address, Address begin);
  /// How well a call of `target` fits the function.
  Link link_of(Address target, Address begin, Address end);
  /// Whether a call instruction ends at the address.
  bool follows_call(Address return_address);
  /// The same by what the process has in its memory, which may have been patched.
  bool follows_call_in_memory(Address return_address) const;
  /// Whether a system call ends at the address.
  bool follows_system_call(Address pc);
  /// What the call before the return address calls, if the instruction or its PLT or GOT entry tells.
  std::optional<Address> callee(Address return_address);
  /// What is called in the innermost loop around a call, by all calls that tell; empty if it is in no loop,
  /// or the function has no unwind table, is large or not understood.
  std::vector<Address> called_in_loop(Address return_address);
  /// Whether the code there has an unwind table.
  bool has_table(const elf::Location& location);
  /// Whether the kernel lets signal handlers return there.
  bool is_signal_trampoline(const elf::Location& location);
  /// MachineCode::read_entry() of the function [begin, end) without unwind table up to the place.
  EntryPath entry(const elf::Location& location, Address begin, Address end);
  /// MachineCode::straight_return() of the code there, if a call led to it.
  std::optional<Registers> straight_return(const elf::Location& location, const Registers& registers,
                                           const StackMemory& memory);

 private:
  /// Null: machine without evaluator.
  const MachineCode* machine_at(const elf::Location& location) const;
  /// Up to into.size() bytes of code from there on, no fewer than `least`; empty if they cannot be had.
  Code read_code(const elf::Location& location, std::span<std::uint8_t> into, std::size_t least) const;
  /// Follows a PLT entry; the address itself if it is none.
  Address through_stub(Address address);
  std::optional<Address> slot_value(Address slot);
  /// By what the process has in its memory, on the machine of code without file.
  CallInstruction call_in_memory(Address return_address) const;
  std::optional<CallInstruction> call_at(Address return_address, elf::Location& location);
  template <class Inside>
  Link link_if(Address return_address, bool caller_has_table, Inside inside);
  template <class Inside>
  Link reach(Address target, Inside inside);
  struct Exits {
    bool open = false;  // it may jump to anywhere
    std::vector<Address> targets;
  };
  const Exits& exits_of(Address place);
  Exits find_exits(const elf::Location& location, const FunctionRange& range);
  bool is_constant(Address slot) const;

  elf::ProcessModules& modules_;
  TableCache& tables_;
  const MachineCode* machine_;
  std::unordered_map<Address, std::optional<Address>> slots_;
  std::unordered_map<Address, Exits> exits_;  // by begin of the function
  std::size_t code_left_;                     // bytes that may be searched for jumps
  memory::PageReader pages_;                  // of code without file
};

}  // namespace hangtrace::unwind
