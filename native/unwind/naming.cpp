#include "unwind/naming.hpp"

#include <optional>

#include "elf/symbols.hpp"
#include "unwind/call_site.hpp"
#include "unwind/table_cache.hpp"

namespace hangtrace::unwind {

namespace {

// A frame without symbol, and the function which its caller called.
struct Open {
  FrameName* name;
  elf::SymbolQuery callee;
};

// In a stripped library a function that blocks is often a local one, entered by a jump from the exported
// function. The call in the frame outside goes to the exported one.
std::optional<elf::SymbolQuery> callee(const Frame& frame, const Frame& caller, elf::ProcessModules& modules,
                                       CallResolver& calls) {
  if (frame.module == nullptr || frame.signal_frame || caller.signal_frame) return std::nullopt;
  const auto target = calls.callee(caller.pc);
  const auto location = target ? modules.locate_code(*target) : std::nullopt;
  // A jump into another library would give the name of something that is not there.
  if (!location || location->module != frame.module) return std::nullopt;
  return elf::SymbolQuery{location->module, location->va};
}

}  // namespace

std::vector<std::vector<std::vector<FrameName>>> name_stacks(std::span<const NamingJob> jobs) {
  std::vector<std::vector<std::vector<FrameName>>> names(jobs.size());
  std::vector<elf::SymbolQuery> queries;
  for (const NamingJob& job : jobs) {
    for (const Stack& stack : job.stacks) {
      for (const Frame& frame : stack.frames) queries.push_back({frame.module, frame.va});
    }
  }
  const auto symbols = elf::symbolize(queries);

  std::size_t next = 0;
  std::vector<Open> open;
  TableCache tables;  // not asked for: only call instructions are looked at
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    CallResolver calls(*jobs[j].modules, tables);
    names[j].resize(jobs[j].stacks.size());
    for (std::size_t s = 0; s < jobs[j].stacks.size(); ++s) {
      const auto& frames = jobs[j].stacks[s].frames;
      names[j][s].resize(frames.size());
      for (std::size_t f = 0; f < frames.size(); ++f) {
        const elf::Symbol* symbol = symbols[next++];
        FrameName& name = names[j][s][f];
        if (symbol != nullptr) {
          name = {symbol->name, frames[f].va - symbol->start, false};
        } else if (f + 1 < frames.size()) {
          if (const auto query = callee(frames[f], frames[f + 1], *jobs[j].modules, calls))
            open.push_back({&name, *query});
        }
      }
    }
  }

  queries.clear();
  for (const Open& item : open) queries.push_back(item.callee);
  const auto callees = elf::symbolize(queries);
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (callees[i] != nullptr && callees[i]->start == open[i].callee.va)
      *open[i].name = {callees[i]->name, 0, true};
  }
  return names;
}

}  // namespace hangtrace::unwind
