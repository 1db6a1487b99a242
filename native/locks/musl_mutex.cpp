#include <cerrno>

#include "locks/decoder.hpp"
#include "locks/musl.hpp"

namespace hangtrace::locks {

bool Decoder::musl_mutex(bool named) {
  const auto mutex = musl::mutex_at(call_, process_.reader);
  if (!mutex) {
    return false;
  }
  const Address address = call_.word - musl::mutex_word;
  const bool waited_for =
      call_.expected == mutex->lock && (mutex->lock & glibc::futex_waiters) != 0 && mutex->waiters > 0;
  if ((mutex->type & musl::mutex_normal_mask) == 0) {
    constexpr std::uint32_t locked = glibc::futex_waiters | EBUSY;
    if (named || (waited_for && mutex->lock == locked && musl())) {
      set_musl_mutex(*mutex, address);
      lock_.problem = "a normal mutex of this C library records no owner";
      return true;
    }
    return false;
  }
  // Its neighbours' pointers are those of the process that holds it: nothing can be said of a shared one.
  const bool shared = !call_.is_private;
  const bool linked = !shared && musl::is_linked(*mutex, address, process_.reader);
  // A thread that ends leaves its mutexes like this; who takes a robust one over adds its id.
  const bool left = (mutex->lock & ~glibc::futex_waiters) == glibc::futex_owner_died;
  if (!named && (!waited_for || (!linked && !((shared || left) && musl())))) {
    return false;
  }
  set_musl_mutex(*mutex, address);
  if (lock_.value == 0) {
    lock_.problem = "released meanwhile";
  } else if (left) {
    lock_.problem = owner_died;
  } else if (!shared && !linked) {
    lock_.problem = "in no list of held mutexes";
  } else {
    set_owner(lock_.value & glibc::futex_tid_mask, "futex word", shared);
    if (!named && shared && lock_.owner_exact) {
      lock_.owner_exact = false;
      lock_.problem = "taken for a mutex by its content alone";
    }
  }
  return true;
}

void Decoder::set_musl_mutex(const musl::Mutex& mutex, Address address) {
  lock_.address = address;
  const int type = mutex.type & musl::mutex_type_mask;
  lock_.kind = (mutex.type & musl::mutex_robust) != 0 ? Kind::mutex_robust
               : call_.timeout                        ? Kind::mutex_timed
               : type == glibc::mutex_recursive_np    ? Kind::mutex_recursive
               : type == glibc::mutex_errorcheck_np   ? Kind::mutex_errorcheck
                                                      : Kind::mutex_normal;
}

bool Decoder::musl_join() {
  const auto thread = musl::joined_at(call_, process_.reader);
  if (!thread) {
    return false;
  }
  lock_.kind = Kind::join;
  if (thread->detach_state == 0) {
    lock_.problem = "thread has ended meanwhile";
  } else {
    set_owner(thread->tid, "struct pthread", false);
  }
  return true;
}

}  // namespace hangtrace::locks
