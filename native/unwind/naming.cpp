#include "unwind/naming.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "elf/symbols.hpp"
#include "unwind/call_site.hpp"
#include "unwind/table_cache.hpp"

namespace hangtrace::unwind {

namespace {

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

// A frame that the module's own symbols do not name.
struct Open {
  FrameName* name;
  elf::SymbolQuery own;
  std::optional<elf::SymbolQuery> callee;
};

// Names all frames of one process for which there is a symbol; the others go to `open`.
void name_by_own_symbols(const NamingJob& job, std::span<const elf::Symbol* const> symbols,
                         std::vector<std::vector<FrameName>>& names, std::vector<Open>& open) {
  TableCache tables;  // not asked for: only call instructions are looked at
  CallResolver calls(*job.modules, tables);
  std::vector<std::pair<FrameName*, Address>> generated;
  std::size_t next = 0;
  names.resize(job.stacks.size());
  for (std::size_t s = 0; s < job.stacks.size(); ++s) {
    const auto& frames = job.stacks[s].frames;
    names[s].resize(frames.size());
    for (std::size_t f = 0; f < frames.size(); ++f) {
      const elf::Symbol* symbol = symbols[next++];
      FrameName& name = names[s][f];
      if (symbol != nullptr) {
        name.function = symbol->name;
        name.offset = frames[f].va - symbol->start;
      } else if (frames[f].module == nullptr) {
        generated.emplace_back(&name, f == 0 ? frames[f].pc : frames[f].pc - 1);
      } else {
        const bool outermost = f + 1 == frames.size();
        open.push_back({&name,
                        {frames[f].module, frames[f].va},
                        outermost ? std::nullopt : callee(frames[f], frames[f + 1], *job.modules, calls)});
      }
    }
  }
  if (generated.empty()) return;
  std::vector<Address> addresses;
  for (const auto& [name, address] : generated) addresses.push_back(address);
  const auto found = job.modules->jit_symbols(addresses);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i]) continue;
    FrameName& name = *generated[i].first;
    name.function = found[i]->name;
    name.offset = addresses[i] - found[i]->start;
    name.jit = true;
  }
}

void name_by_call_sites(std::vector<Open>& open) {
  std::vector<elf::SymbolQuery> queries;
  for (const Open& item : open) queries.push_back(item.callee.value_or(elf::SymbolQuery{nullptr, 0}));
  const auto callees = elf::symbolize(queries);
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (callees[i] == nullptr || callees[i]->start != queries[i].va) continue;
    open[i].name->function = callees[i]->name;
    open[i].name->by_call_site = true;
  }
  std::erase_if(open, [](const Open& item) { return item.name->by_call_site; });
}

void name_by_separate_files(const std::vector<Open>& open) {
  std::vector<elf::SymbolQuery> queries;
  for (const Open& item : open) queries.push_back(item.own);
  const auto symbols = elf::symbolize_separate(queries);
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (symbols[i] == nullptr) continue;
    open[i].name->function = symbols[i]->name;
    open[i].name->offset = queries[i].va - symbols[i]->start;
  }
}

}  // namespace

std::vector<std::vector<std::vector<FrameName>>> name_stacks(std::span<const NamingJob> jobs) {
  std::vector<elf::SymbolQuery> queries;
  std::vector<std::size_t> begins;
  for (const NamingJob& job : jobs) {
    begins.push_back(queries.size());
    for (const Stack& stack : job.stacks) {
      for (const Frame& frame : stack.frames) queries.push_back({frame.module, frame.va});
    }
  }
  const auto symbols = elf::symbolize(queries);

  std::vector<std::vector<std::vector<FrameName>>> names(jobs.size());
  std::vector<Open> open;
  for (std::size_t j = 0; j < jobs.size(); ++j)
    name_by_own_symbols(jobs[j], std::span(symbols).subspan(begins[j]), names[j], open);
  name_by_call_sites(open);
  name_by_separate_files(open);
  return names;
}

}  // namespace hangtrace::unwind
