#include "memory/heap.hpp"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace hangtrace::memory {

#ifdef __GLIBC__

namespace {

constexpr std::uintptr_t huge_page = 2 << 20;
constexpr int step = 8 << 20;
constexpr int largest_in_heap = 1 << 20;
constexpr int most_kept_free = 32 << 20;

bool set_steps() {
  return mallopt(M_TOP_PAD, step) != 0 && mallopt(M_MMAP_THRESHOLD, largest_in_heap) != 0 &&
         mallopt(M_TRIM_THRESHOLD, most_kept_free) != 0;
}

}  // namespace

void prepare_heap() {
  static const bool set = set_steps();
  // More than is free at the end of a heap that has not grown by a step yet.
  void* const piece = set ? std::malloc(largest_in_heap / 2) : nullptr;
  const auto at = reinterpret_cast<std::uintptr_t>(piece);
  std::free(piece);
  if (at == 0) {
    return;
  }
  const auto end = reinterpret_cast<std::uintptr_t>(sbrk(0));
  const bool in_main_heap = at < end && end - at < 2 * static_cast<std::uintptr_t>(step);
  // The heaps of further threads are reserved in much larger, aligned pieces.
  const std::uintptr_t from = in_main_heap ? (at + huge_page - 1) & ~(huge_page - 1) : at & ~(huge_page - 1);
  const std::uintptr_t to = in_main_heap ? end & ~(huge_page - 1) : from + step;
  if (from < to) {
    madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);  // NOLINT: of the heap
  }
}

#else

void prepare_heap() {}

#endif

}  // namespace hangtrace::memory
