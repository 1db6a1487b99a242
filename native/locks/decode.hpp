#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "locks/futex.hpp"
#include "locks/lock.hpp"
#include "locks/primitive.hpp"
#include "memory/reader.hpp"
#include "proc/maps.hpp"

namespace hangtrace::locks {

/// What thread ids in a shared object mean to us: whoever takes it writes its id in its own pid namespace.
enum class Sharers {
  alike,   // all who may share it count threads as the waiter does
  unseen,  // as far as we see; outside of our own pid namespace there may be others
  apart,   // somebody who may share it counts otherwise
};

enum class CLibrary { glibc, musl, unknown };

/// What decoding needs to know of the waiter's process.
struct ProcessView {
  const memory::Reader& reader;
  std::function<const proc::Mapping*(Address)> mapping_at;  // nullptr: none, or it cannot be told
  // Thread ids as the program writes them -> as we see them; nullopt if the process has no such thread.
  std::function<std::optional<int>(int)> thread_here;
  // The same for the threads of all processes within reach.
  std::function<std::optional<int>(int)> thread_anywhere;
  // The program counts threads as we do: its ids mean something to us even if there is no such thread.
  bool same_ids = true;
  CLibrary library = CLibrary::glibc;  // whose layouts hold
  int waiter = 0;                      // the thread that waits, as we see it; 0: unknown
  // Of an object in shared memory; `named`: any process may map it. Not given: alike.
  std::function<Sharers(const SharedKey&, bool named)> sharers = nullptr;
  // Whether the process of a thread maps it; nullopt: it was not looked at. Not given: it does.
  std::function<std::optional<bool>(int, const SharedKey&)> maps = nullptr;
};

/// The object a thread sleeps on. `frames` are its innermost frames, innermost first. Never throws; an owner
/// is only named if all that can be checked about the object holds.
Lock decode(const FutexCall& call, std::span<const FrameHint> frames, const ProcessView& process);

/// Memory around a futex word that decode() reads: copy it in the same moment as the stack.
inline constexpr std::size_t window_before = 48;
inline constexpr std::size_t window_after = 64;

}  // namespace hangtrace::locks
