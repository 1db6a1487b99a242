// Repairs: what to do where the frame pointer is needed and not known, or code has no unwind table. Nothing
// is taken because it looks right: leftovers of earlier calls do, too. With a table either the code tells how
// far away the frame pointer is, or all values it can have are tried, of which the true one is never refused;
// if only one is left, that is it. Without table there are no guesses.
#include <algorithm>

#include "unwind/walk.hpp"

namespace hangtrace::unwind {

namespace {

constexpr int max_depth = 3;
constexpr Address stack_alignment = 16;  // System V AMD64 and AAPCS64: at a call

bool is_aligned(Address cfa) {
  return cfa % stack_alignment == 0;
}

bool is_certain(Link link) {
  return link == Link::direct || link == Link::tail_call;
}

}  // namespace

bool Walk::can_repair() const {
  return context_.options.repair && depth_ < max_depth;
}

// What the row's CFA is if the frame pointer were `value`, and how well the return address there fits;
// nullopt if that cannot be.
std::optional<Walk::Candidate> Walk::candidate(const Frame& frame, const Row& row, const Registers& registers,
                                               const Prologue& prologue, Address value) {
  Registers guess = registers;
  guess.set(context_.layout.frame_pointer, value);
  const auto cfa = compute_cfa(row, guess).cfa;
  if (!cfa || *cfa <= *registers.get(context_.layout.stack_pointer) || *cfa % sizeof(Address) != 0)
    return std::nullopt;
  const Rule& rule = row.rules[row.return_address];
  if (rule.kind != RuleKind::offset) return std::nullopt;
  const Address slot = *cfa + static_cast<Address>(rule.value);
  const auto word = context_.memory.word(slot);
  if (!word) return std::nullopt;
  if (prologue.realigned != 0) {
    // Under the aligned place lie the copy of the return address and the frame pointer of the caller.
    const Address aligned = slot & (Address{0} - prologue.realigned);
    if (value != aligned - 2 * sizeof(Address) || context_.memory.word(aligned - sizeof(Address)) != word)
      return std::nullopt;
  }
  const Link link =
      context_.calls.link(*word & context_.address_mask, row.begin + frame.bias, row.end + frame.bias);
  // Compilers do not align the stack for functions that they know not to need it, and those they call
  // directly.
  if (link == Link::none || (link != Link::direct && !is_aligned(*cfa))) return std::nullopt;
  return Candidate{value, *cfa, slot, link};
}

// Follows a candidate outwards. It cannot be if that leads to what is no code or no memory, or over a return
// address of a call that cannot have led to where it would have.
Walk::Verdict Walk::judge(const Frame& frame, const Row& row, const Registers& registers,
                          const Candidate& candidate) {
  Registers guess = registers;
  guess.set(context_.layout.frame_pointer, candidate.frame_pointer);
  const Caller caller = step(row, guess, candidate.cfa, false);
  const auto cut = [&](End end) {
    Verdict verdict;
    verdict.possible = end != End::no_progress && (end != End::unreadable || !context_.memory.is_whole());
    return verdict;
  };
  if (caller.problem) return cut(*caller.problem);
  Walk outwards(context_, depth_ + 1);
  const Stack rest = outwards.run(caller.registers, false, FoundBy::scan);
  Verdict verdict = cut(rest.end);
  verdict.complete = rest.complete();
  // Some put a zero where a thread starts.
  if (rest.end == End::no_code) verdict.possible = outwards.ended_at_zero_;
  const std::size_t count = rest.frames.size();
  if (verdict.complete && count > 1) verdict.end = rest.frames[count - 2].sp;

  const auto range_of = [&](const Frame& of) {
    std::optional<FunctionRange> range;
    if (of.module != nullptr) range = context_.tables.of(*of.module).function(of.va);
    if (range) range = FunctionRange{range->begin + of.bias, range->end + of.bias};
    return range;
  };
  for (std::size_t i = 0; i < count && verdict.possible; ++i) {
    const bool is_first = i == 0;
    const Frame& callee = is_first ? frame : rest.frames[i - 1];
    if (callee.signal_frame) continue;
    const auto range = range_of(callee);
    if (!range) continue;
    if (!is_first && context_.calls.link(rest.frames[i].pc, range->begin, range->end) == Link::none)
      verdict.possible = false;
    const auto started = started_function(rest, i);
    if (!started) continue;
    if (context_.calls.link_of(*started, range->begin, range->end) == Link::none) verdict.possible = false;
    verdict.end = is_first ? candidate.cfa : callee.sp;
  }
  return verdict;
}

std::optional<Walk::Candidate> Walk::search(const Frame& frame, const Row& row, const Registers& registers,
                                            const Prologue& prologue, Address lowest) {
  std::optional<Candidate> only;
  bool is_complete = false;
  Address end = ~Address{0};
  for (Address value = lowest; value < end; value += sizeof(Address)) {
    if (--context_.budget.words < 0) return std::nullopt;
    if (!context_.memory.word(value)) {
      if (!context_.memory.is_whole()) return std::nullopt;
      break;
    }
    const auto found = candidate(frame, row, registers, prologue, value);
    // A thread is started once: beyond the frame of the function that it was started with there is nothing.
    if (!found || found->cfa >= end) continue;
    const Verdict verdict = judge(frame, row, registers, *found);
    if (context_.budget.frames < 0) return std::nullopt;
    if (!verdict.possible) continue;
    if (only) return std::nullopt;
    only = found;
    is_complete = verdict.complete;
    if (verdict.end > found->slot) end = verdict.end;
  }
  if (!only) return std::nullopt;
  const bool is_innermost = frame.va == frame.pc - frame.bias;
  return is_aligned(only->cfa) || (is_complete && is_innermost) ? only : std::nullopt;
}

std::optional<Walk::Repair> Walk::repair_frame_pointer(const Frame& frame, const Row& row,
                                                       const Registers& registers) {
  if (!can_repair() || registers.has(context_.layout.frame_pointer) || row.signal_frame) return std::nullopt;
  const Address sp = *registers.get(context_.layout.stack_pointer);
  const auto accept = [&](const std::optional<Candidate>& found, FoundBy found_by) -> std::optional<Repair> {
    if (!found) return std::nullopt;
    Repair repair{registers, found_by};
    repair.registers.set(context_.layout.frame_pointer, found->frame_pointer);
    return repair;
  };

  const Prologue prologue = read_prologue(*frame.module, row.begin, frame.pc - frame.bias, row.end);
  const Address lowest = (sp + prologue.below + 7) / 8 * 8;
  if (!prologue.exact || prologue.dynamic)
    return accept(search(frame, row, registers, prologue, lowest), FoundBy::scan);
  // Without alignment there is one possible value, else one for each distance the alignment may have skipped.
  std::optional<Candidate> only;
  for (Address value = lowest; value <= lowest + prologue.alignment; value += 8) {
    const auto found = candidate(frame, row, registers, prologue, value);
    if (!found || (prologue.alignment != 0 && !is_aligned(found->cfa))) continue;
    if (!judge(frame, row, registers, *found).possible) continue;
    if (only) return std::nullopt;
    only = found;
  }
  return accept(only, FoundBy::prologue);
}

// The caller of a function whose begin a symbol tells. Either its frame pointer is known and it keeps one, or
// all of the way from its begin is understood.
std::optional<Registers> Walk::caller_by_entry(const elf::Location& there, const elf::Symbol& function,
                                               const Registers& registers, bool exact_pc) {
  const Layout& layout = context_.layout;
  context_.budget.words -= static_cast<int>(std::min<std::uint64_t>(function.size, 16 << 10) / 64);
  if (context_.budget.words < 0) return std::nullopt;
  const EntryPath entry = context_.calls.entry(there, function.start, function.start + function.size);
  const Address sp = *registers.get(layout.stack_pointer);
  const Address begin = function.start + there.bias;
  const auto link = [&](Address slot) {
    const auto word = context_.memory.word(slot);
    return word ? context_.calls.link_to_begin(*word, begin) : Link::none;
  };
  Registers after = registers;
  after.forget_all(layout.caller_saved);
  const auto returns_from = [&](Address slot) {
    after.set(layout.program_counter, *context_.memory.word(slot));
    after.set(layout.stack_pointer, slot + sizeof(Address));
    return after;
  };
  const auto frame_pointer = registers.get(layout.frame_pointer);
  if (entry.frame_pointer_below && frame_pointer) {
    const Address slot = *frame_pointer + *entry.frame_pointer_below;
    const auto saved = context_.memory.word(*frame_pointer);
    const Link found = link(slot);
    if (*entry.frame_pointer_below != sizeof(Address) || !saved || slot <= sp || found == Link::none)
      return std::nullopt;
    // On its way out the function has given the frame pointer back already.
    if (exact_pc && (!is_certain(found) || context_.calls.follows_call(context_.memory.word(sp).value_or(0))))
      return std::nullopt;
    for (unsigned number = 0; number < layout.count; ++number) after.forget(number);
    after.set(layout.frame_pointer, *saved);
    return returns_from(slot);
  }
  // What only looks like a function's begin, such as that of a cold part, is not called.
  const Address slot = sp + entry.below;
  if (!entry.exact || !is_certain(link(slot))) return std::nullopt;
  for (const EntryPath::Saved& saved : entry.saved) {
    const auto word = context_.memory.word(slot - saved.below);
    if (word) {
      after.set(saved.number, *word);
    } else {
      after.forget(saved.number);
    }
  }
  return returns_from(slot);
}

// Code without unwind table. Words that look like return addresses are no proof, even if all further out is
// consistent: what a frame has not written yet holds those of earlier calls, whose callers still run. So the
// frame's size must be known from code.
std::optional<Registers> Walk::caller_without_table(const Frame& frame, const elf::Location& there,
                                                    const Registers& registers, bool exact_pc) {
  if (!context_.options.repair) return std::nullopt;
  const elf::SymbolQuery query{frame.module, frame.va};
  const elf::Symbol* function =
      frame.module == nullptr ? nullptr : elf::symbolize(std::span(&query, 1)).front();
  if (function != nullptr && (function->size == 0 || frame.va - function->start >= function->size))
    function = nullptr;
  auto returned = context_.calls.straight_return(there, registers, context_.memory);
  const auto entered =
      function == nullptr ? std::nullopt : caller_by_entry(there, *function, registers, exact_pc);
  if (!returned) return entered;
  const unsigned stack_pointer = context_.layout.stack_pointer;
  if (entered && entered->get(stack_pointer) != returned->get(stack_pointer)) return std::nullopt;
  const Address to = *returned->get(context_.layout.program_counter) & context_.address_mask;
  const Link link = function == nullptr ? context_.calls.link_to_unknown(to, frame.pc)
                                        : context_.calls.link_to_begin(to, function->start + frame.bias);
  return link == Link::none ? std::nullopt : returned;
}

}  // namespace hangtrace::unwind
