// Stub of the kernel header of this name: what a program attached to a perf event is given.
#pragma once

#include <linux/types.h>
#include <uapi/linux/ptrace.h>

struct bpf_perf_event_data {
  bpf_user_pt_regs_t regs;
  __u64 sample_period;
  __u64 addr;
};
