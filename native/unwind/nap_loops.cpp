#include "unwind/nap_loops.hpp"

#include <unordered_map>
#include <utility>

#include "elf/symbols.hpp"
#include "unwind/call_site.hpp"

namespace hangtrace::unwind {

namespace {

constexpr std::size_t searched_frames = 5;  // some are those of the C library
constexpr std::size_t most_loops = 64;      // of one process

std::vector<Address> places_of(const Stack& stack) {
  std::vector<Address> places;
  for (std::size_t f = 1; f < stack.frames.size() && places.size() < searched_frames; ++f) {
    if (stack.frames[f].module == nullptr) break;
    places.push_back(stack.frames[f].pc);
  }
  return places;
}

}  // namespace

std::vector<std::vector<std::string>> called_around_naps(std::span<const Stack* const> stacks,
                                                         elf::ProcessModules& modules, TableCache& tables) {
  CallResolver calls(modules, tables);
  std::vector<std::vector<std::string>> names(stacks.size());
  std::vector<elf::SymbolQuery> queries;
  std::unordered_map<Address, std::pair<std::size_t, std::size_t>> loops;  // by return address: its queries
  for (const Stack* const stack : stacks) {
    for (const Address place : places_of(*stack)) {
      if (loops.contains(place) || loops.size() == most_loops) continue;
      const std::size_t first = queries.size();
      for (const Address target : calls.called_in_loop(place)) {
        const auto location = modules.locate_code(target);
        if (location && location->module != nullptr) queries.push_back({location->module, location->va});
      }
      loops[place] = {first, queries.size()};
    }
  }
  const auto symbols = elf::symbolize(queries);
  for (std::size_t i = 0; i < stacks.size(); ++i) {
    for (const Address place : places_of(*stacks[i])) {
      const auto loop = loops.find(place);
      if (loop == loops.end()) continue;
      for (std::size_t k = loop->second.first; k < loop->second.second; ++k) {
        if (symbols[k] != nullptr && symbols[k]->start == queries[k].va) names[i].push_back(symbols[k]->name);
      }
    }
  }
  return names;
}

}  // namespace hangtrace::unwind
