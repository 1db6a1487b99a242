#pragma once

#include <cstdint>
#include <vector>

#include "memory/reader.hpp"

namespace hangtrace::python {

// Where glibc's struct pthread (nptl/descr.h), to whose start pthread_self() points, tells what it is. Both
// are the same in every glibc since 2.4 (x86-64) and since the port was added (2.17, aarch64).
struct PthreadLayout {
  bool names_itself;      // tcbhead_t: its first and third word point to the struct itself
  memory::Address links;  // list_t {next, prev}: the list of all stacks, in which it stands
  memory::Address tid;    // pid_t
};
inline constexpr PthreadLayout kPthreadX86{true, 704, 720};
inline constexpr PthreadLayout kPthreadAarch64{false, 192, 208};
#if defined(__aarch64__)
inline constexpr PthreadLayout kPthreadHost = kPthreadAarch64;
#else
inline constexpr PthreadLayout kPthreadHost = kPthreadX86;
#endif

// Kernel thread ids that glibc keeps in its struct pthread, for idents as threading.get_ident() gives them
// (the address of that struct). 0 where there is no struct pthread of glibc at the address.
std::vector<int> tids_of_pthreads(const memory::Reader& reader, const std::vector<std::uint64_t>& idents,
                                  const PthreadLayout& layout = kPthreadHost);

}  // namespace hangtrace::python
