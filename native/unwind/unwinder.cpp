#include "unwind/unwinder.hpp"

#include <algorithm>
#include <bit>

#include "unwind/call_site.hpp"
#include "unwind/stack_memory.hpp"
#include "unwind/table_cache.hpp"
#include "unwind/walk.hpp"

namespace hangtrace::unwind {

namespace {

constexpr int max_words = 1'000'000;   // a fraction of a second
constexpr int max_frames = 1'000'000;  // walked, for all threads and attempts together: as long

// Where return addresses are signed, the signature is in the bits above those of a user address, bit 55 aside
// (kernel, Documentation/arch/arm64/pointer-authentication.rst). How many these are depends on the kernel;
// the stack lies at the top of the address space and tells.
Address address_mask(const Layout& layout, const std::vector<proc::Mapping>& mappings) {
  if (!layout.signs_return_addresses) return ~Address{0};
  Address last = 0;
  for (const proc::Mapping& mapping : mappings) last = std::max(last, mapping.end - 1);
  return (Address{1} << std::clamp(static_cast<int>(std::bit_width(last)), 36, 55)) - 1;
}

}  // namespace

UnwindCache::UnwindCache() : tables_(std::make_unique<TableCache>()) {}
UnwindCache::~UnwindCache() = default;

std::string describe(End end) {
  switch (end) {
    case End::thread_start:
      return {};
    case End::no_call:
      return "the unwind table leads to what no call returns to";
    case End::no_code:
      return "the return address is not in code";
    case End::no_table:
      return "code without unwind table";
    case End::bad_table:
      return "unusable unwind table";
    case End::unknown_register:
      return "a register that is needed is not known";
    case End::unreadable:
      return "stack memory cannot be read";
    case End::no_progress:
      return "the stack does not lead outwards";
    case End::too_deep:
      return "too many frames";
    case End::unsupported:
      return "machine not supported";
  }
  return {};
}

Unwinder::Unwinder(elf::ProcessModules& modules, UnwindCache& cache, Options options)
    : modules_(modules),
      cache_(cache),
      options_(options),
      calls_(std::make_unique<CallResolver>(modules, cache.tables())),
      rows_(std::make_unique<NearRows>(cache.tables())),
      words_left_(max_words),
      frames_left_(max_frames) {}

Unwinder::~Unwinder() = default;

Registers Unwinder::in_system_call(Address pc, Address sp, std::span<const std::uint64_t, 6> arguments,
                                   const Layout& layout) const {
  Registers registers = Registers::from_pc_sp(pc, sp, layout);
  if (!calls_->follows_system_call(pc)) return registers;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const unsigned number = registers.layout().call_arguments[i];
    if (number < max_registers) registers.set(number, arguments[i]);
  }
  return registers;
}

Stack Unwinder::unwind(const Registers& start, StackCopy copy) const {
  const StackMemory memory(copy.base, copy.bytes, modules_.reader(), modules_.mappings(), copy.only);
  Budget budget;
  const int words = budget.words = std::min(budget.words, words_left_);
  const int frames = budget.frames = std::min(budget.frames, frames_left_);
  const Layout& layout = start.layout();
  calls_->set_machine(layout.machine);
  const WalkContext context{modules_, cache_.tables(), *rows_,
                            *calls_,  memory,          options_,
                            budget,   layout,          address_mask(layout, modules_.mappings())};
  Stack stack = Walk(context, 0).run(start, true, FoundBy::leaf);
  stack.beyond_copy = memory.read_beyond_copy();
  words_left_ -= words - std::max(budget.words, 0);
  frames_left_ -= frames - std::max(budget.frames, 0);
  return stack;
}

}  // namespace hangtrace::unwind
