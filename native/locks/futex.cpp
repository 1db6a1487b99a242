#include "locks/futex.hpp"

#include <sys/syscall.h>

#include <algorithm>
#include <cstring>

namespace hangtrace::locks {

namespace {

constexpr int private_flag = 128;
constexpr int clock_realtime_flag = 256;

// The same number on all machines (include/uapi/asm-generic/unistd.h), but newer than some C libraries'
// headers.
constexpr std::int64_t call_futex_waitv = 449;  // kernel 5.16
constexpr std::int64_t call_futex_wait = 455;   // kernel 6.7

// What sets a restart_block in the kernel: futex_wait, hrtimer_nanosleep, poll.
#if defined(__x86_64__)
constexpr std::array<std::int64_t, 4> restartable{SYS_futex, SYS_nanosleep, SYS_clock_nanosleep, SYS_poll};
#else
constexpr std::array<std::int64_t, 4> restartable{SYS_futex, SYS_nanosleep, SYS_clock_nanosleep, SYS_ppoll};
#endif

struct WaitvEntry {  // struct futex_waitv
  std::uint64_t value;
  std::uint64_t address;
  std::uint32_t flags;
  std::uint32_t reserved;
};

#if defined(__x86_64__)
// The nearest `opcode imm32` before the end of the code whose operand is a call that can be restarted.
std::optional<std::int64_t> last_immediate(std::span<const std::byte> code, std::byte opcode) {
  for (std::size_t at = code.size() < 5 ? 0 : code.size() - 4; at-- > 0;) {
    if (code[at] != opcode) {
      continue;
    }
    std::int32_t number = 0;
    std::memcpy(&number, code.data() + at + 1, sizeof number);
    if (std::ranges::find(restartable, number) != restartable.end()) {
      return number;
    }
  }
  return std::nullopt;
}
#endif

}  // namespace

std::optional<FutexCall> decode_futex(std::int64_t number, const std::array<std::uint64_t, 6>& arguments,
                                      const memory::Reader& reader) {
  FutexCall call;
  if (number == SYS_futex) {
    const int op = static_cast<int>(arguments[1]);
    call.word = arguments[0];
    call.op = op & ~(private_flag | clock_realtime_flag);
    call.expected = static_cast<std::uint32_t>(arguments[2]);
    call.timeout = arguments[3] != 0;
    call.is_private = (op & private_flag) != 0;
    switch (call.op) {
      case futex_wait:
      case futex_lock_pi:
      case futex_wait_bitset:
      case futex_wait_requeue_pi:
      case futex_lock_pi2:
        return call;
      default:
        return std::nullopt;
    }
  }
  if (number == call_futex_wait) {
    call.word = arguments[0];
    call.op = futex_wait_bitset;
    call.expected = arguments[1];
    call.is_private = (arguments[3] & private_flag) != 0;
    call.timeout = arguments[4] != 0;
    return call;
  }
  if (number == call_futex_waitv) {
    const auto first = reader.read_value<WaitvEntry>(arguments[0]);
    if (!first || arguments[1] == 0) {
      return std::nullopt;
    }
    call.word = first->address;
    call.op = futex_wait_bitset;
    call.expected = first->value;
    call.is_private = (first->flags & private_flag) != 0;
    call.timeout = arguments[3] != 0;
    call.others = static_cast<std::uint32_t>(arguments[1] - 1);
    return call;
  }
  return std::nullopt;
}

bool is_restart(std::int64_t number) {
  return number == SYS_restart_syscall;
}

std::optional<std::int64_t> restarted_call(Address program_counter, Address return_address,
                                           const memory::Reader& reader) {
#if defined(__x86_64__)
  constexpr std::byte mov_eax{0xb8};
  constexpr std::byte mov_edi{0xbf};
  std::array<std::byte, 34> code;
  if (program_counter < code.size() || !reader.read(program_counter - code.size(), code)) {
    return std::nullopt;
  }
  const bool after_syscall = code[32] == std::byte{0x0f} && code[33] == std::byte{0x05};
  if (!after_syscall) {
    return std::nullopt;
  }
  if (const auto number = last_immediate(std::span(code).first(32), mov_eax)) {
    return number;
  }
  std::array<std::byte, 64> caller;
  if (return_address >= caller.size() && reader.read(return_address - caller.size(), caller)) {
    return last_immediate(caller, mov_edi);
  }
#else
  static_cast<void>(program_counter);
  static_cast<void>(return_address);
  static_cast<void>(reader);
#endif
  return std::nullopt;
}

}  // namespace hangtrace::locks
