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

// Waits of one thread on one futex word by one operation.
struct word_waits_key {
  __u64 uaddr;
  __u32 tid;
  __u32 operation;
};

enum { WAIT_SLOTS = 24 };

struct word_waits {
  __u64 waits;
  __u64 wait_ns;
  __u64 longest_ns;
  __u64 timed_out;
  __u32
      slots[WAIT_SLOTS];  // slot n: of 2^n to 2^(n+1) units of 1.024 us; the first and the last take the rest
  __u32 tgid;
  __u32 unused;
};

// What one thread has of its own: its sums, the first pair in which it is the woken one, and its waits on the
// first words. What finds no room here is in tables of its own.
enum { NEAR_WORDS = 2 };

struct near_word {
  struct word_waits_key key;
  struct word_waits waits;
};

struct thread_record {
  struct thread_sums sums;
  struct wake_pair pair;
  __u64 pair_count;
#ifdef MAX_WORD_WAITS
  struct near_word words[NEAR_WORDS];
#endif
};

// A thread whose record lies in an array, where it is found without hashing.
struct near_thread {
  __u32 tid;
  __u32 unused;
  struct thread_record record;
};

// Who has taken a slot of an array, by the number of the slot.
enum near_table { OF_THREADS, OF_WORDS };

struct claim_key {
  __u32 table;  // enum near_table
  __u32 slot;
};

struct claim {
  __u64 first;   // the thread, or the word's address
  __u32 second;  // its process
  __u32 taker_tid;
};

// Page faults of one thread in 2 MiB of addresses, by one instruction.
enum { FAULT_PLACE_SHIFT = 21 };

struct fault_place {
  __u64 place;  // the address without its lowest bits
  __u64 code;   // the address of the instruction; 0: one of the kernel's, in a system call
  __u32 tid;
  __u32 tgid;
};

struct place_faults {
  __u64 minor;
  __u64 major;
};

// One thing that happened, at a time of CLOCK_MONOTONIC.
enum event_kind {
  EVENT_FUTEX_WAIT = 1,   // object: the word; other: who woke it, 0 if not known
  EVENT_MAJOR_FAULT = 2,  // object: the address
};

struct timed_event {
  __u64 at_ns;
  __u64 took_ns;
  __u64 object;
  __u32 tid;
  __u32 tgid;
  __u32 other;
  __u32 kind;
};

// Indices of the array `lost`: what could not be counted, since a table was full.
enum lost_kind {
  LOST_THREAD,  // calls and faults of a thread without a record
  LOST_PAIR,    // wake-ups whose pair is not listed (their number is still in `woken`)
  LOST_WAKE,    // wake-ups whose waker could not be noted
  LOST_SUM,     // waits that are in no sum by word
  LOST_EVENT,   // things that are not on the time line
  LOST_PLACE,   // page faults that are in no sum by place
  LOST_KINDS
};
