#include "dwarf/source_lines.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "dwarf/constants.hpp"
#include "dwarf/line_table.hpp"
#include "dwarf/sections.hpp"
#include "dwarf/unit.hpp"
#include "dwarf/unit_index.hpp"
#include "elf/demangle.hpp"

namespace hangtrace::dwarf {

namespace {

constexpr int max_references = 16;       // from an entry to where its name is
constexpr std::size_t max_inlined = 64;  // functions within each other
constexpr std::size_t entries_between_clocks = 4096;

bool passed(Deadline deadline) {
  return std::chrono::steady_clock::now() > deadline;
}

// A function, or one inlined into what comes before it.
struct Scope {
  Entry entry;
  std::size_t depth;
};

// The function at one address and what is inlined in it, outermost first.
struct Scopes {
  std::vector<Scope> list;
  std::uint64_t size = std::numeric_limits<std::uint64_t>::max();  // of the function
  bool open = false;                                               // the last function seen holds the address
};

std::uint64_t total(const std::vector<Range>& ranges) {
  std::uint64_t sum = 0;
  for (const Range& range : ranges) sum += range.end - range.begin;
  return sum;
}

// Finds the scopes of all addresses (sorted) in one pass over the entries of a unit.
class ScopeFinder {
 public:
  ScopeFinder(const Unit& unit, std::span<const Address> addresses)
      : unit_(unit), addresses_(addresses), scopes_(addresses.size()) {}

  // False if the deadline came first.
  bool run(Deadline deadline) {
    elf::Cursor cursor = unit_.entries();
    std::size_t depth = 0;
    for (std::size_t count = 1; cursor.ok() && !cursor.at_end(); ++count) {
      if (count % entries_between_clocks == 0 && passed(deadline)) return false;
      const Entry entry = unit_.read_entry(cursor, true);
      if (!cursor.ok()) break;
      if (entry.tag == 0) {
        if (depth <= 1) break;
        --depth;
        continue;
      }
      if (entry.tag == tag::subprogram || entry.tag == tag::inlined_subroutine) visit(entry, depth);
      if (entry.has_children) ++depth;
      if (depth == 0) break;  // a unit of its first entry only
    }
    return true;
  }

  const Scopes& operator[](std::size_t i) const { return scopes_[i]; }

 private:
  void visit(const Entry& entry, std::size_t depth) {
    const bool function = entry.tag == tag::subprogram;
    const std::vector<Range> ranges = unit_.ranges(entry);
    if (ranges.empty()) return;
    if (function) {
      for (const std::size_t i : opened_) scopes_[i].open = false;
      opened_.clear();
    }
    const std::uint64_t size = total(ranges);
    for (const Range& range : ranges) {
      const auto first = std::ranges::lower_bound(addresses_, range.begin);
      for (auto at = first; at != addresses_.end() && *at < range.end; ++at)
        enter(static_cast<std::size_t>(at - addresses_.begin()), entry, depth, function, size);
    }
  }

  void enter(std::size_t i, const Entry& entry, std::size_t depth, bool function, std::uint64_t size) {
    Scopes& scopes = scopes_[i];
    if (function) {
      if (size >= scopes.size) return;  // of two functions with the same code the one that is about less
      scopes = {{{entry, depth}}, size, true};
      opened_.push_back(i);
      return;
    }
    if (!scopes.open) return;
    while (scopes.list.size() > 1 && scopes.list.back().depth >= depth) scopes.list.pop_back();
    if (scopes.list.size() < max_inlined) scopes.list.push_back({entry, depth});
  }

  const Unit& unit_;
  std::span<const Address> addresses_;
  std::vector<Scopes> scopes_;
  std::vector<std::size_t> opened_;
};

int line_number(std::uint64_t line) {
  return line <= static_cast<std::uint64_t>(std::numeric_limits<int>::max()) ? static_cast<int>(line) : 0;
}

// The file with the debug information of a module; nullptr if there is none.
const elf::Module* file_of(const elf::Module& module) {
  if (module.section(".debug_info") != nullptr) return &module;
  const elf::Module* separate = module.separate_debug_file();
  return separate != nullptr && separate->section(".debug_info") != nullptr ? separate : nullptr;
}

}  // namespace

class DebugInfo::Reader {
 public:
  explicit Reader(const elf::Module& file) : sections_(file), index_(sections_) {}

  SourceLines find(std::span<const Address> asked, Deadline deadline) {
    SourceLines result;
    result.frames.resize(asked.size());
    result.problem = sections_[".debug_info"].problem();
    if (!result.problem.empty()) return result;
    std::vector<Address> sorted(asked.begin(), asked.end());
    std::ranges::sort(sorted);
    sorted.erase(std::ranges::unique(sorted).begin(), sorted.end());
    std::erase_if(sorted, [this](Address address) { return known_.contains(address); });
    bool late = false;
    for (const auto& [offset, addresses] : index_.units_of(sorted, deadline)) {
      late = late || passed(deadline) || !read_unit(offset, addresses, deadline);
    }
    late = late || passed(deadline);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const auto found = known_.find(asked[i]);
      if (found != known_.end()) result.frames[i] = found->second;
    }
    if (late) {
      result.problem = "it took too long to read all debug information";
    } else if (index_.found_split()) {
      result.problem = "debug information in .dwo files is not read";
    }
    return result;
  }

 private:
  // False if the deadline came first.
  bool read_unit(std::uint64_t offset, std::span<const Address> addresses, Deadline deadline) {
    const auto unit = index_.unit_at(offset);
    if (!unit) return true;
    const auto lines = LineTable::run(sections_, *unit, addresses);
    ScopeFinder scopes(*unit, addresses);
    if (!scopes.run(deadline)) return false;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      SourceFrames frames = describe(*unit, scopes[i], lines ? &*lines : nullptr, addresses[i]);
      if (!frames.empty()) known_[addresses[i]] = std::move(frames);
    }
    return true;
  }

  SourceFrames describe(const Unit& unit, const Scopes& scopes, const LineTable* lines, Address address) {
    SourceFrames frames;
    SourceFrame frame;  // the place in it is known before its name
    if (const auto position = lines != nullptr ? lines->position(address) : std::nullopt) {
      frame.file = lines->file(position->file);
      frame.line = line_number(position->line);
    }
    for (auto scope = scopes.list.rbegin(); scope != scopes.list.rend(); ++scope) {
      frame.function = elf::demangle(name(unit, scope->entry, max_references));
      frames.push_back(std::move(frame));
      frame = {};
      const Value& file = scope->entry.call_file;
      if (lines != nullptr && file.kind == Value::Kind::number) frame.file = lines->file(file.number);
      frame.line = line_number(scope->entry.call_line.number);
    }
    if (frames.empty() && !frame.file.empty()) frames.push_back(std::move(frame));
    return frames;
  }

  // The linkage name of an entry or of what it refers to, else its plain name.
  std::string name(const Unit& unit, const Entry& entry, int references_left) {
    if (std::string text = unit.text(entry.linkage_name); !text.empty()) return text;
    for (const Value* reference : {&entry.abstract_origin, &entry.specification}) {
      if (reference->kind != Value::Kind::reference || references_left == 0) continue;
      std::string text = name_at(unit, reference->number, references_left - 1);
      if (!text.empty()) return text;
    }
    return unit.text(entry.name);
  }

  std::string name_at(const Unit& here, std::uint64_t offset, int references_left) {
    const UnitHeader& header = here.header();
    std::shared_ptr<const Unit> other;
    const Unit* unit = &here;
    if (offset < header.offset || offset >= header.end) {
      other = index_.unit_at(offset);
      unit = other.get();
      if (unit == nullptr) return {};
    }
    elf::Cursor cursor = unit->entries();
    cursor.seek(offset - unit->header().offset);
    const Entry entry = unit->read_entry(cursor, false);
    return cursor.ok() ? name(*unit, entry, references_left) : std::string();
  }

  Sections sections_;
  UnitIndex index_;
  std::map<Address, SourceFrames> known_;
};

DebugInfo::DebugInfo(const elf::Module& module) {
  if (const elf::Module* file = file_of(module)) reader_ = std::make_unique<Reader>(*file);
}

DebugInfo::~DebugInfo() = default;

SourceLines DebugInfo::find(std::span<const Address> addresses, Deadline deadline) {
  if (reader_) return reader_->find(addresses, deadline);
  return {std::vector<SourceFrames>(addresses.size()), {}};
}

}  // namespace hangtrace::dwarf
