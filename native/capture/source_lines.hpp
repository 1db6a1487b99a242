#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dwarf/source_lines.hpp"
#include "elf/process_modules.hpp"

namespace hangtrace::capture {

struct SourceAnswer {
  std::vector<dwarf::SourceFrames> frames;  // for each address
  std::vector<std::string> problems;        // one sentence each
};

/// Source positions of addresses in processes; debug information stays open between questions.
class SourceFinder {
 public:
  SourceAnswer find(elf::ProcessModules& modules, std::span<const memory::Address> addresses,
                    dwarf::Deadline deadline);

 private:
  std::map<const elf::Module*, std::unique_ptr<dwarf::DebugInfo>> infos_;
};

}  // namespace hangtrace::capture
