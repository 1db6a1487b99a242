// Repairs: what to do where the frame pointer is needed and not known, or code has no unwind table. With a
// table a guess is taken only if the word it makes a return address follows a call of the very function;
// where the target of that call cannot be told, only if everything further out is consistent up to the
// thread's start. Without table there are no guesses.
#include <algorithm>

#include "unwind/prologue.hpp"
#include "unwind/walk.hpp"

namespace hangtrace::unwind {

namespace {

constexpr int max_depth = 3;
constexpr std::uint64_t scan_bytes = 64 << 10;
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

// What the row's CFA is if the frame pointer were `value`, and how well the return address there fits.
std::optional<Walk::Candidate> Walk::candidate(const Frame& frame, const Row& row, const Registers& registers,
                                               Address value) {
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
  const Link link =
      context_.calls.link(*word & context_.address_mask, row.begin + frame.bias, row.end + frame.bias);
  // Compilers do not align the stack for functions that they know not to need it, and those they call
  // directly.
  if (link == Link::none || (link != Link::direct && !is_aligned(*cfa))) return std::nullopt;
  return Candidate{value, *cfa, slot, link};
}

Walk::Attempt Walk::attempt(const Registers& registers) {
  const Stack rest = Walk(context_, depth_ + 1).run(registers, false, FoundBy::scan);
  Attempt result;
  result.complete = rest.complete();
  if (rest.frames.empty()) return result;
  const Frame& first = rest.frames[0];
  if (first.signal_frame) {
    result.next = Link::indirect;
    return result;
  }
  if (rest.frames.size() <= 2 && result.complete) {
    // A thread's entry calls one function, once.
    result.next = Link::direct;
    return result;
  }
  if (rest.frames.size() < 2) return result;
  const auto range =
      first.module == nullptr ? std::nullopt : context_.tables.of(*first.module).function(first.va);
  if (!range) {
    // Where the function begins is not known, so nothing is sure.
    result.next = std::min(context_.calls.link_to_unknown(rest.frames[1].pc, first.pc), Link::indirect);
    return result;
  }
  result.next = context_.calls.link(rest.frames[1].pc, range->begin + first.bias, range->end + first.bias);
  return result;
}

Walk::Attempt Walk::attempt(const Row& row, const Registers& registers, const Candidate& candidate) {
  Registers guess = registers;
  guess.set(context_.layout.frame_pointer, candidate.frame_pointer);
  const Caller caller = step(row, guess, candidate.cfa, false);
  return caller.problem ? Attempt{} : attempt(caller.registers);
}

std::optional<Walk::Repair> Walk::repair_frame_pointer(const Frame& frame, const Row& row,
                                                       const Registers& registers) {
  if (!can_repair() || registers.has(context_.layout.frame_pointer) || row.signal_frame) return std::nullopt;
  const Address sp = *registers.get(context_.layout.stack_pointer);
  const auto accept = [&](Address value, FoundBy found_by) {
    Repair repair{registers, found_by};
    repair.registers.set(context_.layout.frame_pointer, value);
    return repair;
  };

  const Prologue prologue = read_prologue(*frame.module, row.begin, frame.va);
  const Address lowest = (sp + prologue.below + 7) / 8 * 8;
  if (prologue.sets_frame_pointer && prologue.exact && !prologue.dynamic) {
    // Without alignment there is one possible value, else one for each distance the alignment may have
    // skipped.
    std::optional<Candidate> only;
    bool unique = true;
    for (Address value = lowest; value <= lowest + prologue.alignment; value += 8) {
      const auto found = candidate(frame, row, registers, value);
      if (!found || (prologue.alignment != 0 && !is_aligned(found->cfa))) continue;
      if (found->link == Link::indirect) {
        const Attempt tried = attempt(row, registers, *found);
        if (!tried.complete || tried.next == Link::none) continue;
      }
      unique = !only;
      only = found;
      if (!unique) break;
    }
    if (only && unique) return accept(only->frame_pointer, FoundBy::prologue);
  }

  const bool is_innermost = frame.va == frame.pc - frame.bias;
  bool passed_over = false;
  std::vector<Candidate> certain;
  std::optional<Candidate> first;
  const Address first_slot = first_return_address(lowest + 8, lowest + scan_bytes);
  for (Address value = lowest; value < lowest + scan_bytes; value += 8) {
    if (--context_.budget.words < 0) return std::nullopt;
    if (!context_.memory.word(value)) break;
    const auto found = candidate(frame, row, registers, value);
    if (!found) continue;
    if (!is_certain(found->link)) {
      if (found->slot == first_slot && !first) first = found;
      continue;
    }
    const Attempt tried = attempt(row, registers, *found);
    const bool fits = tried.complete && tried.next != Link::none;
    if (!is_aligned(found->cfa)) {
      // A copy as a rule, or else the function calls none that needs an aligned stack.
      if (!fits) {
        passed_over = true;
        continue;
      }
      return is_innermost ? std::optional(accept(value, FoundBy::scan)) : std::nullopt;
    }
    if (fits) return accept(value, FoundBy::scan);
    certain.push_back(*found);
  }
  if (passed_over) return std::nullopt;
  if (certain.size() == 1) return accept(certain.front().frame_pointer, FoundBy::scan);
  if (!certain.empty() || !first) return std::nullopt;
  // The caller was itself called just so, hence it is alive, and the word is that of the call it is in.
  const Attempt tried = attempt(row, registers, *first);
  if (!tried.complete || !is_certain(tried.next)) return std::nullopt;
  return accept(first->frame_pointer, FoundBy::scan);
}

// Where the first word lies that can be a return address; 0 if there is none.
Address Walk::first_return_address(Address from, Address to) {
  for (Address slot = from; slot < to; slot += 8) {
    if ((slot + sizeof(Address)) % stack_alignment != 0) continue;
    const auto word = context_.memory.word(slot);
    if (!word || --context_.budget.words < 0) return 0;
    if (context_.calls.follows_call(*word & context_.address_mask)) return slot;
  }
  return 0;
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
