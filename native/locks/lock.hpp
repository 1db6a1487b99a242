#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "locks/futex.hpp"
#include "memory/reader.hpp"
#include "proc/maps.hpp"

namespace hangtrace::locks {

enum class Kind {
  mutex_normal,
  mutex_recursive,
  mutex_errorcheck,
  mutex_adaptive,
  mutex_robust,
  mutex_pi,
  mutex_timed,  // any of the plain ones, waited for with a timeout
  rwlock_read,
  rwlock_write,
  join,
  condition,
  semaphore,
  python_lock,
  python_rlock,
  gil,
  barrier,
  future,
  once,
  openmp,
  atomic,
  futex,
};

std::string_view name(Kind kind);

struct SharedKey {           // equal keys are one object, whatever the addresses
  std::uint64_t device = 0;  // as st_dev
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;

  friend bool operator==(const SharedKey&, const SharedKey&) = default;
};

/// Of an address in this mapping; nullopt: that is not shared.
std::optional<SharedKey> shared_key_in(Address address, const proc::Mapping& mapping);

/// What a thread waits for, and who has it.
struct Lock {
  Kind kind = Kind::futex;
  Address address = 0;  // of the object; the futex word where that is all we know
  FutexCall call;
  std::uint32_t value = 0;  // of the futex word now
  // Who is recorded in memory, as we see it; if no such thread exists the bare id, with a problem.
  std::optional<int> owner;
  std::string owner_from;
  bool owner_exact = false;
  std::optional<std::uint32_t> readers;
  std::optional<Address> mutex;
  std::optional<SharedKey> shared_key;
  // Any process may map it under this name; empty: only those that inherited it or were sent it.
  std::string shared_file;
  std::optional<double> owner_age_s;  // since the thread of that id was started
  // What a shared lock records where that is a thread of a process of which nothing was captured.
  std::optional<int> unseen_owner;
  std::optional<Address> python_object;
  std::string owner_function;
  std::string problem;
  bool unconfirmed = false;  // a guess: confirm_parked() says whether it holds
};

}  // namespace hangtrace::locks
