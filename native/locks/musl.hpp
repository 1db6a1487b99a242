#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "locks/futex.hpp"
#include "memory/reader.hpp"

// Layouts of musl's thread objects on 64-bit machines, of 1.2.0 to 1.2.5. Each field that can be checked is.
namespace hangtrace::locks::musl {

// src/internal/pthread_impl.h, _m_type to _m_count; threads sleep on _m_lock. Locked, it holds EBUSY in a
// normal mutex, in others the owner's id, which are also linked into the owner's robust list.
struct Mutex {
  std::int32_t type;
  std::uint32_t lock;
  std::int32_t waiters;
  std::int32_t padding;
  std::int32_t padding2;
  std::int32_t count;
  std::uint64_t previous;  // where the pointer to `next` is
  std::uint64_t next;      // of the next one in the list
};
static_assert(offsetof(Mutex, previous) == 24 && offsetof(Mutex, next) == 32);
inline constexpr std::size_t mutex_word = offsetof(Mutex, lock);

// src/thread/pthread_mutexattr_*.c, bits of _m_type.
inline constexpr int mutex_type_mask = 3;
inline constexpr int mutex_robust = 4;
inline constexpr int mutex_priority_inherit = 8;
inline constexpr int mutex_shared = 128;
inline constexpr int mutex_normal_mask = 15;  // all 0: no owner is kept

// src/internal/pthread_impl.h, struct pthread, as far as the state that pthread_join sleeps on (DT_EXITING 1,
// DT_JOINABLE 2).
struct Thread {
  std::uint64_t self;
#if defined(__x86_64__)
  std::uint64_t dtv;
#endif
  std::uint64_t previous;
  std::uint64_t next;
  std::uint64_t sysinfo;
#if defined(__x86_64__)
  std::uint64_t canary;
#endif
  std::int32_t tid;
  std::int32_t errno_value;
  std::int32_t detach_state;
};
inline constexpr std::size_t thread_word = offsetof(Thread, detach_state);
inline constexpr std::uint32_t detach_state_joinable = 2;

/// The mutex whose `lock` a thread sleeps on, nullopt if that is not what lies there.
std::optional<Mutex> mutex_at(const FutexCall& call, const memory::Reader& reader);

/// Whether a mutex at `address` is in a list of held ones: what else looked like one would have to be
/// pointed at by what it points at.
bool is_linked(const Mutex& mutex, Address address, const memory::Reader& reader);

/// The thread that a pthread_join sleeps for, nullopt if that is not what lies there.
std::optional<Thread> joined_at(const FutexCall& call, const memory::Reader& reader);

}  // namespace hangtrace::locks::musl
