#include "unwind/walk.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "elf/symbols.hpp"
#include "unwind/expression.hpp"

namespace hangtrace::unwind {

namespace {

constexpr int max_signal_frames = 16;

}  // namespace

Walk::Computed Walk::compute_cfa(const Row& row, const Registers& registers) const {
  if (row.cfa_kind == CfaKind::register_offset) {
    const auto base = registers.get(row.cfa_register);
    if (!base) return {std::nullopt, true};
    return {*base + static_cast<Address>(row.cfa_offset), false};
  }
  const auto result = run_expression(row.expression(row.cfa_offset, row.cfa_expression_size), registers,
                                     context_.memory, std::nullopt, bias_);
  if (result.problem == ExpressionProblem::none) return {result.value, false};
  return {std::nullopt, result.problem == ExpressionProblem::unknown_register};
}

std::optional<std::uint64_t> Walk::apply(const Rule& rule, const Row& row, const Registers& registers,
                                         Address cfa) const {
  switch (rule.kind) {
    case RuleKind::same:
    case RuleKind::undefined:
      return std::nullopt;
    case RuleKind::offset:
      return context_.memory.word(cfa + static_cast<Address>(rule.value));
    case RuleKind::value_offset:
      return cfa + static_cast<Address>(rule.value);
    case RuleKind::other_register:
      return rule.value >= 0 && rule.value < std::int64_t{max_registers}
                 ? registers.get(static_cast<unsigned>(rule.value))
                 : std::nullopt;
    case RuleKind::expression:
    case RuleKind::value_expression: {
      const auto result =
          run_expression(row.expression(rule.value, rule.size), registers, context_.memory, cfa, bias_);
      if (result.problem != ExpressionProblem::none) return std::nullopt;
      if (rule.kind == RuleKind::value_expression) return result.value;
      return context_.memory.word(result.value);
    }
  }
  return std::nullopt;
}

Walk::Caller Walk::step(const Row& row, const Registers& registers, Address cfa, bool exact_pc) const {
  const Layout& layout = registers.layout();
  Caller caller{registers, std::nullopt};
  for (unsigned number = 0; number < layout.count; ++number) {
    const Rule& rule = row.rules[number];
    if (rule.kind == RuleKind::same) {
      // The callee may have changed it without saying so, except that a signal saves everything.
      if (!row.signal_frame && (layout.caller_saved >> number & 1) != 0) caller.registers.forget(number);
      continue;
    }
    if (const auto value = apply(rule, row, registers, cfa)) {
      caller.registers.set(number, *value);
    } else {
      caller.registers.forget(number);
    }
  }
  if (row.rules[layout.stack_pointer].kind == RuleKind::same) caller.registers.set(layout.stack_pointer, cfa);

  const unsigned column = row.return_address;
  const Rule& rule = row.rules[column];
  std::optional<std::uint64_t> pc;
  if (rule.kind != RuleKind::same) {
    pc = column < layout.count ? caller.registers.get(column) : apply(rule, row, registers, cfa);
  } else if (column == layout.link_register && exact_pc) {
    pc = registers.get(column);
  } else {
    // Not on the stack, and a function that called another has not kept it in the register.
    caller.problem = End::bad_table;
    return caller;
  }
  if (!pc) {
    caller.problem = rule.kind == RuleKind::offset || rule.kind == RuleKind::expression
                         ? End::unreadable
                         : End::unknown_register;
    return caller;
  }
  // What the caller had in the link register it has lost by its call.
  if (!row.signal_frame) caller.registers.forget(layout.link_register);
  caller.registers.set(layout.program_counter, *pc & context_.address_mask);
  if (!caller.registers.has(layout.stack_pointer)) caller.problem = End::unknown_register;
  return caller;
}

// For trampolines without unwind table: those of musl, and of aarch64's vdso.
std::optional<Registers> Walk::from_signal_trampoline(const elf::Location& location, Address sp) const {
  if (!context_.calls.is_signal_trampoline(location)) return std::nullopt;
  const MachineCode* const machine = machine_code(context_.layout.machine);
  return machine == nullptr ? std::nullopt : machine->interrupted(context_.memory, sp);
}

// Thread and process entries of C libraries that have no unwind table for them.
bool Walk::is_thread_entry(const Frame& frame) const {
  constexpr std::array<std::string_view, 5> entries{"_start", "clone", "__clone", "clone3", "__clone3"};
  const elf::SymbolQuery query{frame.module, frame.va};
  const elf::Symbol* symbol = elf::symbolize(std::span(&query, 1)).front();
  return symbol != nullptr && std::ranges::find(entries, symbol->name) != entries.end();
}

Stack Walk::run(Registers registers, bool exact_pc, FoundBy found_by) {
  const Layout& layout = context_.layout;
  Stack stack;
  int signal_frames = 0;
  const auto ends = [&stack](End end) {
    stack.end = end;
    return std::move(stack);
  };
  for (;;) {
    if (stack.frames.size() >= context_.options.max_frames || --context_.budget.frames < 0)
      return ends(End::too_deep);
    const auto pc = registers.get(layout.program_counter);
    const auto sp = registers.get(layout.stack_pointer);
    if (!pc || !sp) return ends(End::unknown_register);
    // Some put a zero where a thread starts. After a guess it may as well be any word of some frame.
    if (*pc == 0 && !stack.frames.empty() && depth_ == 0) return ends(End::thread_start);
    ended_at_zero_ = *pc == 0;

    auto location = context_.modules.locate_code(exact_pc ? *pc : *pc - 1);
    Frame frame{*pc, 0, nullptr, 0, exact_pc ? *pc : *pc - 1, found_by, false};
    if (!location && !exact_pc) {
      // Nothing lies before a trampoline that has a page of its own.
      location = context_.modules.locate_code(*pc);
      if (location && !context_.calls.is_signal_trampoline(*location)) location.reset();
    }
    if (!location) {
      // The thread's own PC is a fact, a word taken for a return address is not.
      if (stack.frames.empty() && found_by == FoundBy::leaf) stack.frames.push_back(frame);
      return ends(End::no_code);
    }
    frame.module = location->module;
    frame.bias = bias_ = location->bias;
    frame.va = location->va;
    if (frame.module != nullptr && frame.module->machine() != layout.machine) {
      stack.frames.push_back(frame);
      return ends(End::unsupported);
    }

    const auto answer = frame.module == nullptr ? FrameTable::Answer{} : context_.rows.row(*location);
    context_.budget.frames -= answer.cost;
    // The byte before a trampoline without table may belong to another function.
    const bool may_be_trampoline = !answer.row || (!exact_pc && answer.row->end == frame.va + 1);
    if (may_be_trampoline) {
      elf::Location there = *location;
      there.va = *pc - frame.bias;
      if (auto interrupted = from_signal_trampoline(there, *sp)) {
        frame.signal_frame = true;
        frame.va = *pc - frame.bias;
        stack.frames.push_back(frame);
        if (++signal_frames > max_signal_frames) return ends(End::no_progress);
        registers = *interrupted;
        registers.set(layout.program_counter, *registers.get(layout.program_counter) & context_.address_mask);
        exact_pc = true;
        found_by = FoundBy::cfi;
        continue;
      }
    }
    if (!answer.row) {
      stack.frames.push_back(frame);
      if (frame.module != nullptr && !exact_pc && is_thread_entry(frame)) return ends(End::thread_start);
      elf::Location there = *location;
      there.va = *pc - frame.bias;
      const auto caller = caller_without_table(frame, there, registers, exact_pc);
      if (!caller) return ends(answer.broken ? End::bad_table : End::no_table);
      registers = *caller;
      registers.set(layout.program_counter, *registers.get(layout.program_counter) & context_.address_mask);
      found_by = FoundBy::prologue;
      exact_pc = false;
      continue;
    }

    const Row& row = *answer.row;
    frame.signal_frame = row.signal_frame;
    const bool is_outermost = row.rules[row.return_address].kind == RuleKind::undefined;
    // Tables can be wrong: gcc's are behind the retpolines that it puts in line. Nobody calls what
    // makecontext and the kernel let functions return to. Attempts to repair have checks of their own.
    if (depth_ == 0 && !exact_pc && found_by == FoundBy::cfi && !answer.ends_call && !row.signal_frame &&
        !is_outermost && !context_.calls.follows_call_in_memory(*pc)) {
      return ends(End::no_call);
    }
    FoundBy next_found_by = FoundBy::cfi;
    Computed computed = compute_cfa(row, registers);
    if (!computed.cfa && !is_outermost) {
      const auto repair =
          computed.unknown_register ? repair_frame_pointer(frame, row, registers) : std::nullopt;
      if (repair) {
        registers = repair->registers;
        next_found_by = repair->found_by;
        computed = compute_cfa(row, registers);
      }
      if (!computed.cfa) {
        stack.frames.push_back(frame);
        return ends(computed.unknown_register ? End::unknown_register : End::unreadable);
      }
    }
    frame.sp = computed.cfa.value_or(0);
    stack.frames.push_back(frame);
    if (is_outermost) return ends(End::thread_start);
    // Only a signal may have come from another stack. An innermost function may use no stack at all where its
    // return address is in a register.
    const RuleKind returns = row.rules[row.return_address].kind;
    const bool may_stand =
        exact_pc && ((row.return_address == layout.link_register && returns == RuleKind::same) ||
                     returns == RuleKind::other_register);
    const Address least = may_stand ? *sp : *sp + 1;
    if (row.signal_frame ? ++signal_frames > max_signal_frames : *computed.cfa < least)
      return ends(End::no_progress);

    const Caller caller = step(row, registers, *computed.cfa, exact_pc);
    if (caller.problem) return ends(*caller.problem);
    registers = caller.registers;
    exact_pc = row.signal_frame;
    found_by = next_found_by;
  }
}

}  // namespace hangtrace::unwind
