// Who runs: for all BPF programs here. Without maps, whose calls bcc rewrites in the main text alone.
#pragma once

#include <linux/types.h>

// High half process, low half thread, as user space names them; 0 where the current process has no id in the
// namespace that is asked for (PIDNS_DEV, PIDNS_INO).
static __always_inline u64 current_ids(void) {
#ifdef PIDNS_INO
  struct bpf_pidns_info ids = {};
  if (bpf_get_ns_current_pid_tgid(PIDNS_DEV, PIDNS_INO, &ids, sizeof(ids))) return 0;
  return (u64)ids.tgid << 32 | ids.pid;
#else
  return bpf_get_current_pid_tgid();
#endif
}
