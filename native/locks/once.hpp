#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "locks/decode.hpp"
#include "locks/primitive.hpp"
#include "memory/reader.hpp"

namespace hangtrace::locks {

/// A thread of the waiter's process.
struct StackOf {
  int tid = 0;
  std::span<const FrameHint> frames;
  const Lock* waits_for = nullptr;
};

/// Who runs the initialisation that `lock` (Kind::once) waits for, which no memory records: the one thread
/// that called pthread_once with this object and is inside what that calls, or the one that is deeper in the
/// function whose local variable is initialised; the waiter itself where it came to it again from there.
/// Several or none: nobody. Sets owner and owner_from, never owner_exact.
void find_initialiser(Lock& lock, std::span<const FrameHint> waiter, std::span<const StackOf> others,
                      const memory::Reader& reader);

}  // namespace hangtrace::locks
