#pragma once

#include <vector>

#include "python/process.hpp"

namespace hangtrace::python {

// A thread that went from one interpreter into another has a thread state, and frames, in each. Makes one
// entry of each such thread: named by the interpreter it runs in now, with the frames of that one first and
// those of the interpreters it came from outside of them. Entries without a tid stay as they are. `problem`
// of a thread tells if nothing shows which of its interpreters is innermost: then it keeps none of the
// frames.
void unite_threads(std::vector<PythonThread>& threads);

}  // namespace hangtrace::python
