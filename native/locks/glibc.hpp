#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// Layouts of the GNU C library's thread objects on 64-bit machines (x86-64 and aarch64 agree but where said).
namespace hangtrace::locks::glibc {

// sysdeps/nptl/bits/struct_mutex.h, struct __pthread_mutex_s. Unchanged since 2.4.
struct Mutex {
  std::uint32_t lock;
  std::uint32_t count;
  std::int32_t owner;
  std::uint32_t users;
  std::int32_t kind;
  std::int16_t spins;
  std::int16_t elision;
};
static_assert(sizeof(Mutex) == 24);

// nptl/pthreadP.h, bits of __kind.
inline constexpr int mutex_type_mask = 3;
inline constexpr int mutex_robust = 16;
inline constexpr int mutex_priority_inherit = 32;
inline constexpr int mutex_priority_protect = 64;
inline constexpr int mutex_shared = 128;
inline constexpr int mutex_known_bits = 0x3ff;  // with ELISION 256 and NO_ELISION 512

enum MutexType { mutex_timed_np = 0, mutex_recursive_np = 1, mutex_errorcheck_np = 2, mutex_adaptive_np = 3 };

// include/uapi/linux/futex.h, of the word of robust and priority inheriting mutexes.
inline constexpr std::uint32_t futex_waiters = 0x80000000;
inline constexpr std::uint32_t futex_owner_died = 0x40000000;
inline constexpr std::uint32_t futex_tid_mask = 0x3fffffff;

// sysdeps/nptl/libio-lock.h or stdio-lock.h, _IO_lock_t: the lock of a FILE. `owner` is a struct pthread, or
// 0.
struct StreamLock {
  std::uint32_t lock;
  std::int32_t count;
  std::uint64_t owner;
};
static_assert(sizeof(StreamLock) == 16);
inline constexpr std::uint32_t lock_contended = 2;  // sysdeps/nptl/lowlevellock.h
// nptl/descr.h, struct pthread on x86-64: tcbhead_t has `self` at 16 and 704 bytes, a list of 16 bytes
// follows.
inline constexpr std::size_t thread_self = 16;
inline constexpr std::size_t thread_id = 720;

// sysdeps/nptl/bits/struct_rwlock.h, struct __pthread_rwlock_arch_t. Since 2.25. Before that another lock
// altogether.
struct ReadWriteLock {
  std::uint32_t readers;  // count << 3, with flags in the low bits
  std::uint32_t writers;
  std::uint32_t phase_futex;
  std::uint32_t writers_futex;
  std::uint32_t pad3;
  std::uint32_t pad4;
  std::int32_t current_writer;
  std::int32_t shared;
};
static_assert(sizeof(ReadWriteLock) == 32);
inline constexpr unsigned rwlock_reader_shift = 3;
// nptl/pthread_rwlock_common.c: PTHREAD_RWLOCK_WRPHASE of `readers`, PTHREAD_RWLOCK_FUTEX_USED of both
// futexes.
inline constexpr std::uint32_t rwlock_write_phase = 1;
inline constexpr std::uint32_t rwlock_futex_used = 2;

// sysdeps/nptl/bits/thread-shared-types.h, struct __pthread_cond_s: where the two words that waiters sleep on
// lie. Since 2.25 at 40 and 44; since 2.41, which has no __g_refs, at 32 and 36.
inline constexpr std::array<std::size_t, 4> condition_words{40, 44, 32, 36};

// sysdeps/nptl/internaltypes.h, struct pthread_barrier: in, current_round, count, shared, out. Since 2.23;
// waiters sleep on current_round.
struct Barrier {
  std::uint32_t in;
  std::uint32_t current_round;
  std::uint32_t count;
  std::int32_t shared;
  std::uint32_t out;
};
inline constexpr std::size_t barrier_word = 4;

}  // namespace hangtrace::locks::glibc
