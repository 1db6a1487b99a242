#include "capture/source_lines.hpp"

namespace hangtrace::capture {

SourceAnswer SourceFinder::find(elf::ProcessModules& modules, std::span<const memory::Address> addresses,
                                dwarf::Deadline deadline) {
  struct Question {
    std::vector<memory::Address> vas;
    std::vector<std::size_t> places;
  };
  std::map<const elf::Module*, Question> questions;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto location = modules.locate_code(addresses[i]);
    if (!location || location->module == nullptr) continue;
    Question& question = questions[location->module];
    question.vas.push_back(location->va);
    question.places.push_back(i);
  }
  SourceAnswer answer;
  answer.frames.resize(addresses.size());
  for (const auto& [module, question] : questions) {
    std::unique_ptr<dwarf::DebugInfo>& info = infos_[module];
    if (!info) info = std::make_unique<dwarf::DebugInfo>(*module);
    dwarf::SourceLines lines = info->find(question.vas, deadline);
    for (std::size_t i = 0; i < question.places.size(); ++i)
      answer.frames[question.places[i]] = std::move(lines.frames[i]);
    if (!lines.problem.empty()) answer.problems.push_back(module->path() + ": " + lines.problem);
  }
  return answer;
}

}  // namespace hangtrace::capture
