#pragma once

#include <cstdint>
#include <vector>

#include "memory/reader.hpp"

namespace hangtrace::python {

// Kernel thread ids that glibc keeps in its struct pthread, for idents as threading.get_ident() gives them
// (the address of that struct). 0 where there is no struct pthread of glibc for x86-64 at the address.
std::vector<int> tids_of_pthreads(const memory::Reader& reader, const std::vector<std::uint64_t>& idents);

}  // namespace hangtrace::python
