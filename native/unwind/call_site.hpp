#pragma once

#include <optional>
#include <unordered_map>

#include "elf/process_modules.hpp"
#include "unwind/table_cache.hpp"

namespace hangtrace::unwind {

/// The x86-64 call instruction that ends at an address, by the bytes before it. Several readings can be
/// possible.
struct CallInstruction {
  std::optional<Address> direct;  // va of the target of `call rel32`
  std::optional<Address> slot;    // va of the pointer of `call [rip + disp32]`
  bool indirect = false;          // through a register or other memory
  bool any() const { return direct || slot || indirect; }
};
CallInstruction call_before(const elf::Module& module, Address return_va);

/// Whether the code is that to which the kernel lets signal handlers return: it is not called by anybody.
bool is_signal_trampoline(const elf::Module& module, Address va);

/// How well a return address fits a function as the one that was called.
enum class Link {
  none,       // not a return address, or one of a call to something else
  indirect,   // the target of the call is not known, or a signal handler's return to the kernel
  tail_call,  // the target of the call jumps into the function
  direct,     // calls the function, directly or through its PLT or GOT entry
};

/// Questions about call instructions in one process. GOT entries read are kept, so use one for one look only.
class CallResolver {
 public:
  CallResolver(elf::ProcessModules& modules, TableCache& tables) : modules_(modules), tables_(tables) {}

  /// `begin`, `end`: the function in the process.
  Link link(Address return_address, Address begin, Address end);
  /// The same for code without unwind table around `pc`, whose begin is unknown.
  Link link_to_unknown(Address return_address, Address pc);
  /// Whether a call instruction ends at the address.
  bool follows_call(Address return_address);
  /// What the call before the return address calls, if the instruction or its PLT or GOT entry tells.
  std::optional<Address> callee(Address return_address);

 private:
  /// Follows a PLT entry; the address itself if it is none.
  Address through_stub(Address address);
  std::optional<Address> stub_slot(const elf::Module& module, Address va);
  std::optional<Address> slot_value(Address slot);
  std::optional<CallInstruction> call_at(Address return_address, elf::Location& location);
  template <class Inside>
  Link link_if(Address return_address, Inside inside);
  template <class Inside>
  bool jumps_into(Address function, Inside inside);

  elf::ProcessModules& modules_;
  TableCache& tables_;
  std::unordered_map<Address, std::optional<Address>> slots_;
};

}  // namespace hangtrace::unwind
