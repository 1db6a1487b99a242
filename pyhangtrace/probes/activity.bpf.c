// What the threads of the target processes do beside futex calls and page faults: time off the CPU by kernel
// stack, block I/O, signals, exits and victims of the OOM killer. Sums in the kernel; what is told one by one
// is rare, and nobody is woken for it.
//
// Configured by these macros alone:
//   HANGTRACE_KERNEL_VERSION   version of the running kernel (KERNEL_VERSION encoding)
//   MAX_TARGETS                processes
//   MAX_THREADS                threads of all targets together
//   TIMELINE_PAGES             pages of 4 KiB of the ring buffer; undefined: nothing is told one by one
//   MAX_STACKS                 defined: time off the CPU is summed (off_cpu), with so many different kernel
//   stacks LONG_WAIT_NS               how long a thread must have been uninterruptible to be on the time line
//   SWITCH_PREV_STATE, SWITCH_PREV_PID, SWITCH_NEXT_PID, SIGNAL_NUMBER, VICTIM_PID, BIO_SECTORS
//                              offsets of fields of tracepoints (from tracefs), each only where its program
//                              is wanted
//   PIDNS_DEV, PIDNS_INO       the PID namespace ids are wanted in; undefined: the initial one
//
// Uses tracepoint fields and helpers only, no kernel structure, so one text serves every kernel.
#include <linux/types.h>

#include "hangtrace/activity_events.h"
#include "hangtrace/current.h"

// Nothing counts while it is 0, so that all probes start and end at the same moment.
BPF_ARRAY(gate, u32, 1);
BPF_HASH(targets, u32, u32, MAX_TARGETS);
BPF_HASH(io, struct io_key, struct io_sums, MAX_THREADS);
BPF_ARRAY(lost, u64, LOST_ACTIVITY_KINDS);
#ifdef TIMELINE_PAGES
BPF_RINGBUF_OUTPUT(timeline, TIMELINE_PAGES);
#endif
#ifdef MAX_STACKS
BPF_HASH(off_now, u32, struct off_now, MAX_THREADS);
BPF_HASH(off_sums, struct off_key, struct off_sums, MAX_OFF_SUMS);
BPF_STACK_TRACE(stacks, MAX_STACKS);
#endif

static __always_inline void count_lost(int kind) {
  u64* count = lost.lookup(&kind);
  if (count) __sync_fetch_and_add(count, 1);
}

static __always_inline int counting(void) {
  int zero = 0;
  u32* open = gate.lookup(&zero);
  return open && *open;
}

// The ids of the current thread if it is one of a target, else 0.
static __always_inline u64 target_ids(void) {
  if (!counting()) return 0;
  u64 ids = current_ids();
  u32 tgid = ids >> 32;
  return targets.lookup(&tgid) ? ids : 0;
}

static __always_inline u32 field(void* ctx, int offset) {
  return *(u32*)((char*)ctx + offset);
}

static __always_inline void tell(u64 ids, u32 kind, u32 detail, u64 at_ns, u64 took_ns) {
#ifdef TIMELINE_PAGES
  struct activity event = {
      .at_ns = at_ns, .took_ns = took_ns, .tid = ids, .tgid = ids >> 32, .kind = kind, .detail = detail};
  if (timeline.ringbuf_output(&event, sizeof(event), BPF_RB_NO_WAKEUP)) count_lost(LOST_ACTIVITY);
#endif
}

#ifdef MAX_STACKS
// Bits of the state in sched_switch: what a task is reported as, and that it was preempted (0 or this one).
enum { TASK_UNINTERRUPTIBLE = 2, TASK_REPORT_MAX = 0x100 };

static __always_inline void back_on(u32 global_tid, u64 now) {
  struct off_now* off = off_now.lookup(&global_tid);
  if (!off || !off->since_ns) return;
  u64 took = now - off->since_ns;
  struct off_key key = off->key;
  off->since_ns = 0;  // kept for the next time: to make and delete entries costs more than all the rest
  struct off_sums* sums = off_sums.lookup(&key);
  if (!sums) {
    struct off_sums fresh = {};
    off_sums.insert(&key, &fresh);
    sums = off_sums.lookup(&key);
    if (!sums) {
      count_lost(LOST_SWITCH);
      return;
    }
  }
  // A thread comes back on one CPU only: nobody else writes these.
  sums->times++;
  sums->off_ns += took;
  if (took > sums->longest_ns) sums->longest_ns = took;
  if (key.state == OFF_UNINTERRUPTIBLE && took >= LONG_WAIT_NS)
    tell((u64)key.tgid << 32 | key.tid, ACTIVITY_OFF, key.state, now - took, took);
}

int off_cpu(void* ctx) {
  if (!counting()) return 0;
  u64 now = bpf_ktime_get_ns();
  back_on(field(ctx, SWITCH_NEXT_PID), now);
  u64 ids = current_ids();  // still those of the thread that leaves
  u32 tgid = ids >> 32;
  if (!targets.lookup(&tgid)) return 0;
  u64 state = *(u64*)((char*)ctx + SWITCH_PREV_STATE);
  u32 global_tid = field(ctx, SWITCH_PREV_PID);
  struct off_now* off = off_now.lookup(&global_tid);
  if (!off) {
    struct off_now fresh = {};
    off_now.insert(&global_tid, &fresh);
    off = off_now.lookup(&global_tid);
    if (!off) {
      count_lost(LOST_SWITCH);
      return 0;
    }
  }
  off->key.tid = ids;
  off->key.tgid = tgid;
  off->key.state = !(state & (TASK_REPORT_MAX - 1)) ? OFF_RUNNABLE
                   : (state & TASK_UNINTERRUPTIBLE) ? OFF_UNINTERRUPTIBLE
                                                    : OFF_SLEEPING;
  int stack = stacks.get_stackid(ctx, 0);
  if (stack < 0) {
    stack = -1;
    count_lost(LOST_STACK);
  }
  off->key.kernel_stack = stack;
  off->since_ns = now;
  return 0;
}
#endif

#ifdef BIO_SECTORS
int bio_queued(void* ctx) {
  u64 ids = target_ids();
  if (!ids) return 0;
  struct io_key key = {.tid = ids, .tgid = ids >> 32};
  struct io_sums* sums = io.lookup(&key);
  if (!sums) {
    struct io_sums fresh = {};
    io.insert(&key, &fresh);
    sums = io.lookup(&key);
    if (!sums) {
      count_lost(LOST_IO);
      return 0;
    }
  }
  sums->requests++;
  sums->sectors += field(ctx, BIO_SECTORS);
  return 0;
}
#endif

int exits(void* ctx) {
  u64 ids = target_ids();
  if (ids) tell(ids, ACTIVITY_EXIT, (u32)ids == ids >> 32, bpf_ktime_get_ns(), 0);
  return 0;
}

#ifdef SIGNAL_NUMBER
int signal_delivered(void* ctx) {
  u64 ids = target_ids();
  if (ids) tell(ids, ACTIVITY_SIGNAL, field(ctx, SIGNAL_NUMBER), bpf_ktime_get_ns(), 0);
  return 0;
}
#endif

#ifdef VICTIM_PID
// The victim is not the current task; user space knows whether it is one of the targets.
int oom_victim(void* ctx) {
  if (counting()) tell(field(ctx, VICTIM_PID), ACTIVITY_OOM, 0, bpf_ktime_get_ns(), 0);
  return 0;
}
#endif
