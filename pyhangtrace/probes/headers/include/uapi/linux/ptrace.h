// Stub of the kernel header of this name: the saved registers, as each architecture lays them out for
// BPF programs. Their size is where bpf_perf_event_data goes on; uprobes read arguments and results from
// them.
#pragma once

#include <linux/types.h>

#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
struct user_pt_regs {
  __u64 regs[31];
  __u64 sp;
  __u64 pc;
  __u64 pstate;
};
struct pt_regs {
  union {
    struct user_pt_regs user_regs;
    struct {
      __u64 regs[31];
      __u64 sp;
      __u64 pc;
      __u64 pstate;
    };
  };
};
typedef struct user_pt_regs bpf_user_pt_regs_t;
#else
struct pt_regs {
  unsigned long r15, r14, r13, r12, bp, bx;
  unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
  unsigned long orig_ax, ip, cs, flags, sp, ss;
};
typedef struct pt_regs bpf_user_pt_regs_t;
#endif
