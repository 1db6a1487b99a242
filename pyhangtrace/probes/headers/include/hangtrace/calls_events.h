// What the BPF programs of calls.bpf.c hand to user space. pyhangtrace/probes/calls_events.py describes the
// same bytes; a test compares both. Only 64-bit and 32-bit members, in an order without holes.
#pragma once

#include <linux/types.h>

// A function of a process that is watched, by the address of its first instruction.
struct site_key {
  __u64 address;
  __u32 tgid;
  __u32 unused;
};

struct site {
  __u32 number;  // the caller's own
  __u32 object;  // which argument is what its sums are kept by; NO_OBJECT: none
  __u32 told;    // each of its calls is on the time line, not only long ones
  __u32 unused;
};

enum { CALL_ARGUMENTS = 6, NO_OBJECT = CALL_ARGUMENTS, CALLS_DEEP = 4 };

// Calls of one function by one thread on one object.
struct call_key {
  __u64 object;
  __u32 tid;
  __u32 tgid;
  __u32 site;
  __u32 unused;
};

struct call_sums {
  __u64 calls;
  __u64 call_ns;
  __u64 longest_ns;
};

// A call that is under way.
struct call_now {
  __u64 since_ns;
  __u64 arguments[CALL_ARGUMENTS];
  struct site site;
};

// Those of one thread, the outermost first: a function that is watched may call another one.
struct call_stack {
  __u32 tgid;
  __u32 depth;
  struct call_now calls[CALLS_DEEP];
};

struct call_event {
  __u64 at_ns;
  __u64 took_ns;
  __u64 arguments[CALL_ARGUMENTS];
  __u32 tid;
  __u32 tgid;
  __u32 site;
  __s32 result;
};

// Indices of the array `lost`: what could not be counted, since a table was full.
enum call_lost_kind {
  LOST_CALL,        // calls that were not noted, or lie too deep in others
  LOST_CALL_SUM,    // calls that are in no sum
  LOST_CALL_EVENT,  // calls that are not on the time line
  LOST_CALL_KINDS
};
