// Repairs: what to do where the frame pointer is needed and not known, or code has no unwind table. A guess
// is taken only if the word it makes a return address follows a call of the very function; where the target
// of that call cannot be told, only if everything further out is consistent up to the thread's start.
#include <algorithm>

#include "unwind/prologue.hpp"
#include "unwind/walk.hpp"

namespace hangtrace::unwind {

namespace {

constexpr int max_depth = 3;
constexpr std::uint64_t scan_bytes = 64 << 10;
constexpr Address stack_alignment = 16;  // System V AMD64 and AAPCS64: at a call

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
  if (!cfa || *cfa <= *registers.get(context_.layout.stack_pointer) || *cfa % stack_alignment != 0)
    return std::nullopt;
  const Rule& rule = row.rules[row.return_address];
  if (rule.kind != RuleKind::offset) return std::nullopt;
  const Address slot = *cfa + static_cast<Address>(rule.value);
  const auto word = context_.memory.word(slot);
  if (!word) return std::nullopt;
  const Link link =
      context_.calls.link(*word & context_.address_mask, row.begin + frame.bias, row.end + frame.bias);
  if (link == Link::none) return std::nullopt;
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
    result.next = context_.calls.link_to_unknown(rest.frames[1].pc, first.pc);
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
      if (!found) continue;
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
    if (tried.complete && tried.next != Link::none) return accept(value, FoundBy::scan);
    certain.push_back(*found);
  }
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

// Code without unwind table: its frame may have any size, so the return address is the first word that
// follows a call which may have led here. If the first word that follows any call is no such one, it may be
// a leftover; then only a call that surely led here is taken. A word that follows a call in other code
// without table may always be the return address of a frame, so none is passed over.
std::optional<Walk::Repair> Walk::repair_without_table(const Frame& frame, const Registers& registers) {
  // Elsewhere the return address can be in a register, and where it lies does not tell where the frame ends.
  if (!can_repair() || context_.layout.link_register != max_registers) return std::nullopt;
  const auto frame_pointer = registers.get(context_.layout.frame_pointer);
  const Address lowest = (*registers.get(context_.layout.stack_pointer) + 7) / 8 * 8;
  bool first = true;
  for (Address slot = lowest; slot < lowest + scan_bytes; slot += sizeof(Address)) {
    if (--context_.budget.words < 0) return std::nullopt;
    const auto word = context_.memory.word(slot);
    if (!word) break;
    const auto caller = *word == 0 ? std::nullopt : context_.modules.locate_code(*word - 1);
    if (!caller || !context_.calls.follows_call(*word)) continue;
    const bool aligned = (slot + sizeof(Address)) % stack_alignment == 0;
    const bool in_doubt = !context_.calls.has_table(*caller);
    const Link link = aligned ? context_.calls.link_to_unknown(*word, frame.pc) : Link::none;
    const bool is_candidate = is_certain(link) || (link != Link::none && first);
    first = first && !aligned;
    if (is_candidate) {
      Repair repair{Registers::from_pc_sp(*word, slot + sizeof(Address), context_.layout), FoundBy::scan};
      if (frame_pointer && *frame_pointer + sizeof(Address) == slot) {
        if (const auto saved = context_.memory.word(*frame_pointer))
          repair.registers.set(context_.layout.frame_pointer, *saved);
      }
      const Attempt tried = attempt(repair.registers);
      if (tried.complete && (is_certain(tried.next) || (is_certain(link) && tried.next != Link::none)))
        return repair;
    }
    if (in_doubt) break;
  }
  return std::nullopt;
}

}  // namespace hangtrace::unwind
