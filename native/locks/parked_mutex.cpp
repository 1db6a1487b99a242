#include <algorithm>
#include <utility>

#include "locks/decoder.hpp"
#include "locks/musl.hpp"

namespace hangtrace::locks {

namespace {

constexpr std::string_view never_had = "can never be had: the kernel found a deadlock or a dead owner";
constexpr std::size_t innermost_stack = 2048;  // bytes that a few frames of the C library take

}  // namespace

// A priority inheriting mutex that can never be had (the kernel found a deadlock, or a dead owner): the C
// library sleeps on a word of its own stack for ever (nptl/pthread_mutex_lock.c, "Delay the thread").
bool Decoder::is_parked() const {
  const FrameHint& outer = frames_[recognized_.frame];
  return lock_.value == 0 && call_.expected == 0 && outer.stack_begin != 0 &&
         call_.word >= frames_.front().stack_begin && call_.word < outer.stack_end;
}

// Which mutex it was may still lie on its stack. More than one that fits is none.
void Decoder::parked() {
  lock_.kind = Kind::mutex_pi;
  lock_.problem = never_had;
  std::optional<Lock> found;
  for (const Address address :
       pointers_on_stack(frames_.front().stack_begin, frames_[recognized_.frame].stack_end)) {
    const auto mutex = process_.reader.read_value<glibc::Mutex>(address);
    if (!mutex || !plausible(*mutex) || (mutex->kind & glibc::mutex_priority_inherit) == 0 ||
        mutex->users == 0 || mutex->lock == 0 || !shared_flag_agrees(*mutex)) {
      continue;
    }
    Lock candidate = lock_;
    candidate.address = address;
    candidate.value = mutex->lock;
    candidate.shared_key = shared_key(address);
    candidate.shared_file = candidate.shared_key ? shared_file(address) : "";
    std::swap(candidate, lock_);
    set_owner(mutex->lock & glibc::futex_tid_mask, "futex word", !call_.is_private);
    std::swap(candidate, lock_);
    if (candidate.owner == process_.waiter) {
      continue;  // one that it holds itself
    }
    if (found) {
      return;
    }
    found = candidate;
  }
  if (found) {
    found->owner_exact = false;
    lock_ = *found;
  }
}

// As is_parked(), in musl (src/thread/pthread_mutex_timedlock.c, pthread_mutex_timedlock_pi). Its frames
// have neither names nor sizes: what lies on the innermost part of the stack is only a guess.
void Decoder::musl_parked() {
  const Address begin = frames_.empty() ? 0 : frames_.front().stack_begin;
  if (begin == 0 || lock_.value != 0 || call_.expected != 0 || !call_.is_private || call_.word < begin ||
      call_.word >= begin + innermost_stack) {
    return;
  }
  const proc::Mapping* const mapping = process_.mapping_at(begin);
  const Address end = mapping != nullptr ? std::min(mapping->end, begin + innermost_stack) : begin;
  std::optional<std::pair<Address, int>> found;
  for (const Address address : pointers_on_stack(begin, end)) {
    const auto mutex = process_.reader.read_value<musl::Mutex>(address);
    constexpr int known = musl::mutex_type_mask | musl::mutex_robust | musl::mutex_priority_inherit;
    if (!mutex || (mutex->type & ~known) != 0 || (mutex->type & musl::mutex_priority_inherit) == 0 ||
        !musl::is_linked(*mutex, address, process_.reader)) {
      continue;
    }
    const auto owner = process_.thread_here(static_cast<int>(mutex->lock & glibc::futex_tid_mask));
    if (!owner || *owner == process_.waiter) {
      continue;  // nobody's, or one that it holds itself
    }
    if (found) {
      return;  // more than one that fits is none
    }
    found = {address, *owner};
  }
  if (found) {
    lock_.kind = Kind::mutex_pi;
    lock_.address = found->first;
    lock_.owner = found->second;
    lock_.owner_from = "futex word";
    lock_.problem = never_had;
    lock_.unconfirmed = true;
  }
}

}  // namespace hangtrace::locks
