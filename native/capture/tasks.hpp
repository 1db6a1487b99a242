#pragma once

#include "capture/look.hpp"

namespace hangtrace::capture {

/// Makes tasks of what was read of the interpreter, once it is known which threads ran meanwhile.
void add_tasks(Look& look);

}  // namespace hangtrace::capture
