#include "locks/lock.hpp"

#include <sys/sysmacros.h>

namespace hangtrace::locks {

std::string_view name(Kind kind) {
  switch (kind) {
    case Kind::mutex_normal:
      return "mutex_normal";
    case Kind::mutex_recursive:
      return "mutex_recursive";
    case Kind::mutex_errorcheck:
      return "mutex_errorcheck";
    case Kind::mutex_adaptive:
      return "mutex_adaptive";
    case Kind::mutex_robust:
      return "mutex_robust";
    case Kind::mutex_pi:
      return "mutex_pi";
    case Kind::mutex_timed:
      return "mutex_timed";
    case Kind::rwlock_read:
      return "rwlock_read";
    case Kind::rwlock_write:
      return "rwlock_write";
    case Kind::join:
      return "join";
    case Kind::condition:
      return "condition";
    case Kind::semaphore:
      return "semaphore";
    case Kind::python_lock:
      return "python_lock";
    case Kind::python_rlock:
      return "python_rlock";
    case Kind::gil:
      return "gil";
    case Kind::barrier:
      return "barrier";
    case Kind::future:
      return "future";
    case Kind::once:
      return "once";
    case Kind::openmp:
      return "openmp";
    case Kind::atomic:
      return "atomic";
    case Kind::futex:
      return "futex";
  }
  return "futex";
}

std::optional<SharedKey> shared_key_in(Address address, const proc::Mapping& mapping) {
  if (!mapping.shared) {
    return std::nullopt;
  }
  return SharedKey{makedev(mapping.dev_major, mapping.dev_minor), mapping.inode,
                   mapping.offset + (address - mapping.start)};
}

}  // namespace hangtrace::locks
