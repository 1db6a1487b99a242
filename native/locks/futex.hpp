#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "memory/reader.hpp"

namespace hangtrace::locks {

using memory::Address;

// Operations of futex(2) that sleep, without flags (include/uapi/linux/futex.h).
inline constexpr int futex_wait = 0;
inline constexpr int futex_lock_pi = 6;
inline constexpr int futex_wait_bitset = 9;
inline constexpr int futex_wait_requeue_pi = 11;
inline constexpr int futex_lock_pi2 = 13;

/// A thread asleep in one of the futex system calls.
struct FutexCall {
  Address word = 0;
  int op =
      futex_wait;  // without FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME; the newer calls: futex_wait_bitset
  std::uint64_t expected = 0;  // the value it went to sleep on
  bool timeout = false;
  bool is_private = false;   // keyed by the address space, not by what is mapped
  std::uint32_t others = 0;  // futex_waitv: so many more words wake it too
};

/// The futex wait that a system call is, or nullopt if it is something else. `reader` is asked only for
/// futex_waitv.
std::optional<FutexCall> decode_futex(std::int64_t number, const std::array<std::uint64_t, 6>& arguments,
                                      const memory::Reader& reader);

/// True for restart_syscall(2), what a timed call becomes after an interruption.
bool is_restart(std::int64_t number);

/// The call a restart_syscall stands for, from the code that made it: `mov eax, number` before the syscall
/// instruction at `program_counter`, or the number given to the C library's syscall(), whose caller returns
/// to `return_address` (0: unknown). Arguments stay in their registers. Only calls the kernel restarts so are
/// believed; else nullopt.
std::optional<std::int64_t> restarted_call(Address program_counter, Address return_address,
                                           const memory::Reader& reader);

}  // namespace hangtrace::locks
