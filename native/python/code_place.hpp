#pragma once

#include <string>

#include "memory/reader.hpp"

namespace hangtrace::python {

/// An instruction of a code object, by its offset in bytes as PyFrame_GetLasti and traceback objects have it.
struct CodePlace {
  memory::Address code = 0;
  int instruction = 0;
};

struct CodeLine {
  std::string function;  // qualified name from 3.11 on, plain name before; empty: not a code object
  std::string file;
  int line = 0;  // 0: unknown
};

}  // namespace hangtrace::python
