#include <cstddef>

#include "locks/decoder.hpp"

namespace hangtrace::locks {

void Decoder::rwlock() {
  const bool reading = recognized_.primitive == Primitive::rwlock_read;
  lock_.kind = reading ? Kind::rwlock_read : Kind::rwlock_write;
  if (musl()) {
    return;
  }
  // Which of the lock's words it is follows from the value slept on (nptl/pthread_rwlock_common.c): readers
  // wait while the phase is 1|USED; writers for other writers while writers_futex is 1|USED, then for
  // readers while the phase is 0|USED; readers behind a preferred writer on the reader count itself.
  constexpr std::uint64_t set = 1 | glibc::rwlock_futex_used;
  std::size_t offset = offsetof(glibc::ReadWriteLock, readers);
  if (reading) {
    offset = call_.expected == set ? offsetof(glibc::ReadWriteLock, phase_futex) : offset;
  } else if (call_.expected == set) {
    offset = offsetof(glibc::ReadWriteLock, writers_futex);
  } else if (call_.expected == glibc::rwlock_futex_used) {
    offset = offsetof(glibc::ReadWriteLock, phase_futex);
  } else {
    lock_.problem = "not a lock of the known layout";
    return;
  }
  const Address base = call_.word - offset;
  const auto lock = process_.reader.read_value<glibc::ReadWriteLock>(base);
  const std::uint32_t readers = lock ? lock->readers >> glibc::rwlock_reader_shift : 0;
  const bool valid = lock && lock->phase_futex <= set && lock->writers_futex <= set &&
                     readers <= most_users && lock->current_writer >= 0 &&
                     (lock->shared != 0) == !call_.is_private;
  if (!valid) {
    lock_.problem = "not a lock of the known layout";
    return;
  }
  lock_.address = base;
  // In the write phase the count is of readers that wait.
  lock_.readers = (lock->readers & glibc::rwlock_write_phase) != 0 ? 0 : readers;
  if (lock->current_writer != 0) {
    set_owner(lock->current_writer, "__cur_writer", lock->shared != 0);
  } else if (*lock_.readers > 0) {
    lock_.problem = "held for reading; readers are only counted";
  } else {
    lock_.problem = "no holder recorded";
  }
}

}  // namespace hangtrace::locks
