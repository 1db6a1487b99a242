// What the window's BPF programs hand to user space. pyhangtrace/probes/events.py describes the same bytes
// as numpy dtypes; a test compiles this file and compares every offset. Only 64-bit and 32-bit members, in an
// order without holes, so that the layout is the same for every compiler.
#pragma once

#include <linux/types.h>

// One thread. Only the thread itself writes its record, so plain additions are exact on any CPU and no copy
// per CPU is needed.
struct thread_sums {
  __u64 waiting_since_ns;  // CLOCK_MONOTONIC when the call in progress was entered, 0 outside of one
  __u64 uaddr;             // futex word of the call in progress
  __u64 waits;             // waits that began and ended in the window, whatever ended them
  __u64 wait_ns;
  __u64 longest_ns;
  __u64 longest_uaddr;
  __u64 timed_out;    // of `waits`: ended by their timeout
  __u64 interrupted;  // of `waits`: ended by a signal
  __u64 not_slept;    // calls that returned at once since the word had changed; not in `waits`
  __u64 wake_calls;
  __u64 woken;  // sum of what those calls returned
  __u64 minor_faults;
  __u64 major_faults;
  __u64 last_major_address;
  __u32 tgid;
  __u32 operation;  // enum futex_operation of the call in progress, with its flags
};

// Key of a wake-up whose both ends are known.
struct wake_pair {
  __u32 waker_tid;
  __u32 woken_tid;
};

// Indices of the array `lost`: what could not be counted, since a table was full.
enum lost_kind {
  LOST_THREAD,  // calls and faults of a thread without a record
  LOST_PAIR,    // wake-ups whose pair is not listed (their number is still in `woken`)
  LOST_WAKE,    // wake-ups whose waker could not be noted
  LOST_KINDS
};
