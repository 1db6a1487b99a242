// Prints file, line and inlined functions of addresses, to compare with addr2line -i -f -e:
//   lines_tool FILE < addresses in hex, one a line
#include <fcntl.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "dwarf/source_lines.hpp"
#include "elf/module.hpp"

int main(int count, char** arguments) {
  using namespace hangtrace;
  if (count != 2) return 2;
  auto opened =
      elf::Module::open(elf::FileSource::adopt(::open(arguments[1], O_RDONLY | O_CLOEXEC)), arguments[1]);
  if (!opened.module) {
    std::fprintf(stderr, "%s\n", opened.problem.c_str());
    return 1;
  }
  std::vector<memory::Address> addresses;
  for (std::string line; std::getline(std::cin, line);) addresses.push_back(std::stoull(line, nullptr, 16));
  const auto began = std::chrono::steady_clock::now();
  dwarf::DebugInfo info(*opened.module);
  const auto lines = info.find(addresses, began + std::chrono::seconds(60));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    std::printf("%llx\n", static_cast<unsigned long long>(addresses[i]));
    for (const auto& frame : lines.frames[i])
      std::printf("\t%s\t%s:%d\n", frame.function.c_str(), frame.file.c_str(), frame.line);
  }
  std::fprintf(stderr, "%.1f ms, %zu addresses. %s\n", took.count(), addresses.size(), lines.problem.c_str());
}
