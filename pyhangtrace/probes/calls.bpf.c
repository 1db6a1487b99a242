// Calls of functions of the target processes, from their entry to their return, by uprobes: how often, how
// long, with which arguments. Sums in the kernel; single calls through a ring buffer that nobody is woken
// for.
//
// Configured by these macros alone:
//   HANGTRACE_KERNEL_VERSION   version of the running kernel (KERNEL_VERSION encoding)
//   MAX_TARGETS                processes (the functions watched are those of the table `sites`)
//   MAX_SITES                  functions of all processes together
//   MAX_THREADS                threads of all targets together
//   TIMELINE_PAGES             pages of 4 KiB of the ring buffer; undefined: nothing is told one by one
//   LONG_WAIT_NS               how long a call must take to be told where not each of them is
//   PIDNS_DEV, PIDNS_INO       the PID namespace ids are wanted in; undefined: the initial one
//
// Uses saved registers and helpers only, no kernel structure, so one text serves every kernel.
#include <linux/types.h>
#include <uapi/linux/ptrace.h>

#include "hangtrace/calls_events.h"
#include "hangtrace/current.h"

BPF_ARRAY(gate, u32, 1);
BPF_HASH(targets, u32, u32, MAX_TARGETS);
BPF_HASH(sites, struct site_key, struct site, MAX_SITES);
BPF_HASH(under_way, u32, struct call_stack, MAX_THREADS);
BPF_HASH(call_sums, struct call_key, struct call_sums, MAX_CALL_SUMS);
BPF_PERCPU_ARRAY(scratch, struct call_stack, 1);
BPF_ARRAY(lost, u64, LOST_CALL_KINDS);
#ifdef TIMELINE_PAGES
BPF_RINGBUF_OUTPUT(timeline, TIMELINE_PAGES);
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

int call_enter(struct pt_regs* ctx) {
  if (!counting()) return 0;
  u64 ids = current_ids();
  u32 tid = ids, tgid = ids >> 32;
  // Other processes that use the same library come here too.
  struct site_key key = {.address = PT_REGS_IP(ctx), .tgid = tgid};
  struct site* site = sites.lookup(&key);
  if (!site) return 0;
  struct call_stack* stack = under_way.lookup(&tid);
  if (!stack || stack->tgid != tgid) {
    int zero = 0;
    struct call_stack* fresh = scratch.lookup(&zero);
    if (!fresh) return 0;
    fresh->tgid = tgid;
    fresh->depth = 0;
    under_way.update(&tid, fresh);
    stack = under_way.lookup(&tid);
    if (!stack) {
      count_lost(LOST_CALL);
      return 0;
    }
  }
  u32 depth = stack->depth;
  stack->depth = depth + 1;
  if (depth >= CALLS_DEEP) {
    count_lost(LOST_CALL);
    return 0;
  }
  struct call_now* call = &stack->calls[depth & (CALLS_DEEP - 1)];
  call->site = *site;
  call->arguments[0] = PT_REGS_PARM1(ctx);
  call->arguments[1] = PT_REGS_PARM2(ctx);
  call->arguments[2] = PT_REGS_PARM3(ctx);
  call->arguments[3] = PT_REGS_PARM4(ctx);
  call->arguments[4] = PT_REGS_PARM5(ctx);
  call->arguments[5] = PT_REGS_PARM6(ctx);
  call->since_ns = bpf_ktime_get_ns();
  return 0;
}

static __always_inline void sum_call(u64 ids, struct call_now* call, u64 took) {
  struct call_key key = {.tid = ids, .tgid = ids >> 32, .site = call->site.number};
  u32 object = call->site.object;
  if (object < CALL_ARGUMENTS) key.object = call->arguments[object];
  struct call_sums* sums = call_sums.lookup(&key);
  if (!sums) {
    struct call_sums fresh = {};
    call_sums.insert(&key, &fresh);
    sums = call_sums.lookup(&key);
    if (!sums) {
      count_lost(LOST_CALL_SUM);
      return;
    }
  }
  sums->calls++;
  sums->call_ns += took;
  if (took > sums->longest_ns) sums->longest_ns = took;
}

int call_return(struct pt_regs* ctx) {
  if (!counting()) return 0;
  u64 ids = current_ids();
  u32 tid = ids;
  struct call_stack* stack = under_way.lookup(&tid);
  if (!stack || stack->tgid != ids >> 32 || !stack->depth) return 0;
  u32 depth = stack->depth - 1;
  stack->depth = depth;
  if (depth >= CALLS_DEEP) return 0;
  struct call_now* call = &stack->calls[depth & (CALLS_DEEP - 1)];
  u64 took = bpf_ktime_get_ns() - call->since_ns;
  sum_call(ids, call, took);
#ifdef TIMELINE_PAGES
  if (call->site.told || took >= LONG_WAIT_NS) {
    struct call_event event = {.at_ns = call->since_ns,
                               .took_ns = took,
                               .tid = ids,
                               .tgid = ids >> 32,
                               .site = call->site.number,
                               .result = PT_REGS_RC(ctx)};
    __builtin_memcpy(event.arguments, call->arguments, sizeof(event.arguments));
    if (timeline.ringbuf_output(&event, sizeof(event), BPF_RB_NO_WAKEUP)) count_lost(LOST_CALL_EVENT);
  }
#endif
  return 0;
}
