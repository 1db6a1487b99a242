// Prints the unwinding rules at addresses of an ELF file, to compare with other readers of the tables:
//   unwind_rows FILE < ADDRESSES        one address (va, hexadecimal) a line
// Output, one line for each: the CFA, then every register with a rule, as `readelf
// --debug-dump=frames-interp` writes them (expressions as "exp" and "vexp" without their content); "none"
// where there is no usable entry.
#include <fcntl.h>

#include <cstdio>
#include <string>

#include "elf/module.hpp"
#include "unwind/table_cache.hpp"

namespace {

using namespace hangtrace;

std::string print(const unwind::Rule& rule) {
  char text[32] = "u";
  const auto value = static_cast<long long>(rule.value);
  switch (rule.kind) {
    case unwind::RuleKind::same:
    case unwind::RuleKind::undefined:
      break;
    case unwind::RuleKind::offset:
      std::snprintf(text, sizeof text, "c%+lld", value);
      break;
    case unwind::RuleKind::value_offset:
      std::snprintf(text, sizeof text, "v%+lld", value);
      break;
    case unwind::RuleKind::other_register:
      std::snprintf(text, sizeof text, "r%lld", value);
      break;
    case unwind::RuleKind::expression:
      return "exp";
    case unwind::RuleKind::value_expression:
      return "vexp";
  }
  return text;
}

std::string print(const unwind::Row& row) {
  std::string line = "exp";
  if (row.cfa_kind == unwind::CfaKind::register_offset) {
    line = "r" + std::to_string(row.cfa_register) + (row.cfa_offset < 0 ? "" : "+") +
           std::to_string(row.cfa_offset);
  }
  for (unsigned number = 0; number < row.rules.size(); ++number) {
    const std::string rule = print(row.rules[number]);
    if (rule != "u") line += " " + std::to_string(number) + ":" + rule;
  }
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: unwind_rows FILE < ADDRESSES\n");
    return 2;
  }
  const auto opened =
      elf::Module::open(elf::FileSource::adopt(::open(argv[1], O_RDONLY | O_CLOEXEC)), argv[1]);
  if (!opened.module) {
    std::fprintf(stderr, "%s\n", opened.problem.c_str());
    return 1;
  }
  unwind::FrameTable table(*opened.module);
  for (unsigned long long address = 0; std::scanf("%llx", &address) == 1;) {
    const auto answer = table.row(address);
    std::puts(answer.row ? print(*answer.row).c_str() : answer.broken ? "broken" : "none");
  }
  return 0;
}
