#pragma once

#include <span>

#include "locks/decode.hpp"

namespace hangtrace::locks {

/// A thread of a process and what it sleeps on.
struct Waiter {
  int tid = 0;
  Lock* lock = nullptr;
};

/// Takes back what decode() only guessed (Lock::unconfirmed): a mutex that can never be had must be part of a
/// circle of such mutexes, each held by who waits for the next one; else the thread sleeps on a plain futex.
void confirm_parked(std::span<const Waiter> waiters);

}  // namespace hangtrace::locks
