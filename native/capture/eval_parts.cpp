#include "capture/eval_parts.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include "elf/symbols.hpp"

namespace hangtrace::capture {

namespace {

constexpr std::size_t max_loop_bytes = 1 << 20;
constexpr std::size_t max_targets = 1 << 14;
constexpr std::size_t enough_targets =
    2;  // different ones: one alone may be bytes that only look like a jump

// PLT entries share one entry of the unwind table, and all of them are begins.
bool in_text(const elf::Module& module, Address va) {
  return std::ranges::any_of(module.sections(), [va](const elf::Section& section) {
    const bool text = section.name == ".text" || section.name.starts_with(".text.");
    return text && va >= section.va && va - section.va < section.size;
  });
}

// Where the bytes, linked at `begin`, jump to on a condition (x86-64 jcc rel32), out of themselves. Any byte
// is taken for the begin of an instruction.
std::set<Address> conditional_targets(std::span<const std::byte> code, Address begin) {
  std::set<Address> targets;
  for (std::size_t i = 0; i + 6 <= code.size() && targets.size() < max_targets; ++i) {
    if (code[i] != std::byte{0x0f} || (code[i + 1] & std::byte{0xf0}) != std::byte{0x80}) {
      continue;
    }
    std::int32_t distance = 0;
    std::memcpy(&distance, &code[i + 2], sizeof distance);
    const Address target = begin + i + 6 + static_cast<Address>(static_cast<std::int64_t>(distance));
    if (target < begin || target - begin >= code.size()) {
      targets.insert(target);
    }
  }
  return targets;
}

}  // namespace

bool EvalParts::contains(elf::Module& module, Address va) {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(parts_of(module), [va](const unwind::FunctionRange& part) {
    return va >= part.begin && va < part.end;
  });
}

const std::vector<unwind::FunctionRange>& EvalParts::parts_of(elf::Module& module) {
  const auto [known, fresh] = parts_.try_emplace(&module);
  std::vector<unwind::FunctionRange>& parts = known->second;
  if (!fresh || module.machine() != elf::Machine::x86_64) {
    return parts;
  }
  unwind::FrameTable& table = tables_.of(module);
  const auto symbol = elf::find_symbol(module, "_PyEval_EvalFrameDefault");
  const auto loop = symbol ? table.function(*symbol) : std::nullopt;
  if (!loop || loop->begin != *symbol || loop->end - loop->begin > max_loop_bytes) {
    return parts;
  }
  std::vector<std::byte> code(loop->end - loop->begin);
  if (!module.read_va(loop->begin, code)) {
    return parts;
  }
  std::map<Address, std::pair<Address, std::size_t>> hits;  // begin -> end, how many targets
  for (const Address target : conditional_targets(code, loop->begin)) {
    const auto part = in_text(module, target) ? table.function(target) : std::nullopt;
    if (part && part->begin != target) {
      auto& [end, count] = hits[part->begin];
      end = part->end;
      ++count;
    }
  }
  for (const auto& [begin, hit] : hits) {
    if (hit.second >= enough_targets) {
      parts.push_back({begin, hit.first});
    }
  }
  return parts;
}

}  // namespace hangtrace::capture
