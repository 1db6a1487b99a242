// What the BPF programs of activity.bpf.c hand to user space. pyhangtrace/probes/activity_events.py describes
// the same bytes; a test compares both. Only 64-bit and 32-bit members, in an order without holes.
#pragma once

#include <linux/types.h>

// How a thread left the CPU.
enum off_state {
  OFF_SLEEPING,         // waits, a signal would end it
  OFF_UNINTERRUPTIBLE,  // waits for I/O, or for a lock of the kernel
  OFF_RUNNABLE,         // would run, but others do
};

// Time off the CPU of one thread at one place of the kernel.
struct off_key {
  __s32 kernel_stack;  // id in the table of stacks, negative: it found no room
  __u32 state;         // enum off_state
  __u32 tid;
  __u32 tgid;
};

struct off_sums {
  __u64 times;
  __u64 off_ns;
  __u64 longest_ns;
};

// A thread that is off the CPU, since when; 0 while it is on one. The key of its table is the thread's number
// in the initial PID namespace.
struct off_now {
  __u64 since_ns;
  struct off_key key;
};

// Block I/O that a thread submitted.
struct io_key {
  __u32 tid;
  __u32 tgid;
};

struct io_sums {
  __u64 requests;
  __u64 sectors;  // of 512 bytes
};

// One thing that happened, at a time of CLOCK_MONOTONIC.
enum activity_kind {
  ACTIVITY_EXIT = 16,  // the thread ended; detail: 1 if its process did with it
  ACTIVITY_SIGNAL,     // a signal was delivered to it; detail: its number
  ACTIVITY_OOM,        // the OOM killer chose it; tid is that of the initial PID namespace, tgid is 0
  ACTIVITY_OFF,        // it was off the CPU without being interruptible; detail: enum off_state
};

struct activity {
  __u64 at_ns;
  __u64 took_ns;
  __u32 tid;
  __u32 tgid;
  __u32 kind;
  __u32 detail;
};

// Indices of the array `lost`: what could not be counted, since a table was full.
enum activity_lost_kind {
  LOST_SWITCH,  // times off the CPU that are in no sum
  LOST_STACK,   // of those that are: without a stack
  LOST_IO,
  LOST_ACTIVITY,  // things that are not on the time line
  LOST_ACTIVITY_KINDS
};
