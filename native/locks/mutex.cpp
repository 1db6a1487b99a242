#include "locks/decoder.hpp"
#include "locks/musl.hpp"

namespace hangtrace::locks {

bool Decoder::plausible(const glibc::Mutex& mutex) {
  return (mutex.kind & ~glibc::mutex_known_bits) == 0 && mutex.users <= most_users && mutex.owner >= 0;
}

bool Decoder::shared_flag_agrees(const glibc::Mutex& mutex) const {
  return ((mutex.kind & glibc::mutex_shared) != 0) == !call_.is_private;
}

void Decoder::mutex() {
  if (musl()) {
    lock_.kind = Kind::mutex_normal;
    if (!musl_mutex(true)) {
      lock_.problem = "not a mutex of the known layout";
    }
    return;
  }
  if (is_parked()) {
    parked();
    return;
  }
  const auto mutex = process_.reader.read_value<glibc::Mutex>(call_.word);
  if (!mutex || !plausible(*mutex)) {
    lock_.kind = Kind::mutex_normal;
    lock_.problem = "not a mutex of the known layout";
    return;
  }
  if ((mutex->kind & glibc::mutex_robust) != 0) {
    lock_.kind = Kind::mutex_robust;
    owner_from_word();
    return;
  }
  switch (mutex->kind & glibc::mutex_type_mask) {
    case glibc::mutex_recursive_np:
      lock_.kind = Kind::mutex_recursive;
      break;
    case glibc::mutex_errorcheck_np:
      lock_.kind = Kind::mutex_errorcheck;
      break;
    case glibc::mutex_adaptive_np:
      lock_.kind = Kind::mutex_adaptive;
      break;
    default:
      lock_.kind = Kind::mutex_normal;
      break;
  }
  if (call_.timeout) {
    lock_.kind = Kind::mutex_timed;
  }
  if (mutex->lock == 0) {
    lock_.problem = "released meanwhile";
  } else if (mutex->owner == 0 || mutex->users == 0) {
    // Between taking the word and writing the owner, or destroyed or initialised anew while locked.
    lock_.problem = "locked, but no owner recorded";
  } else if (!shared_flag_agrees(*mutex)) {
    lock_.problem = "not a mutex of the known layout";
  } else {
    set_owner(mutex->owner, "pthread_mutex_t.__owner", (mutex->kind & glibc::mutex_shared) != 0);
  }
}

// The memory may look like a locked mutex in each of its fields.
void Decoder::unnamed_mutex() {
  // The C library asks the kernel itself: by syscall(3) only others do, and what their words mean nobody
  // knows.
  const bool own_futex = !frames_.empty() && frames_.front().function == "syscall";
  if (call_.op != futex_wait || own_futex) {
    return;
  }
  const auto mutex = process_.reader.read_value<glibc::Mutex>(call_.word);
  if (!mutex || mutex->owner <= 0 || mutex->users == 0 || !plausible(*mutex) || !shared_flag_agrees(*mutex)) {
    return;
  }
  const bool robust = (mutex->kind & glibc::mutex_robust) != 0;
  const bool locked = robust
                          ? mutex->lock == (glibc::futex_waiters | static_cast<std::uint32_t>(mutex->owner))
                          : mutex->lock == 2;
  if (!locked || call_.expected != mutex->lock) {
    return;
  }
  if (const auto here = process_.thread_here(mutex->owner)) {
    lock_.kind = robust ? Kind::mutex_robust : Kind::mutex_normal;
    lock_.owner = *here;
    lock_.owner_from = robust ? "futex word" : "pthread_mutex_t.__owner";
    lock_.problem = "taken for a mutex by its content alone";
  }
}

}  // namespace hangtrace::locks
