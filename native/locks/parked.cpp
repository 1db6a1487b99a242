#include "locks/parked.hpp"

#include <algorithm>
#include <vector>

namespace hangtrace::locks {

namespace {

bool comes_back(const Waiter& start, std::span<const Waiter> waiters) {
  const Waiter* at = &start;
  for (std::size_t step = 0; step < waiters.size(); ++step) {
    if (at->lock == nullptr || at->lock->kind != Kind::mutex_pi || !at->lock->owner) {
      return false;
    }
    if (*at->lock->owner == start.tid) {
      return true;
    }
    const auto next = std::ranges::find(waiters, *at->lock->owner, &Waiter::tid);
    if (next == waiters.end()) {
      return false;
    }
    at = &*next;
  }
  return false;
}

}  // namespace

void confirm_parked(std::span<const Waiter> waiters) {
  std::vector<Lock*> refuted;
  for (const Waiter& waiter : waiters) {
    if (waiter.lock != nullptr && waiter.lock->unconfirmed && !comes_back(waiter, waiters)) {
      refuted.push_back(waiter.lock);
    }
  }
  for (Lock* const lock : refuted) {
    Lock plain;
    plain.call = lock->call;
    plain.address = lock->call.word;
    *lock = plain;
  }
}

}  // namespace hangtrace::locks
