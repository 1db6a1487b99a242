// Counts futex waits, wake-ups and page faults of the target processes for a short window, by sums in the
// kernel: no event is sent to user space, so nobody is woken for it.
//
// Configured by these macros alone:
//   HANGTRACE_KERNEL_VERSION   version of the running kernel (KERNEL_VERSION encoding)
//   MAX_TARGETS                processes
//   MAX_THREADS                threads of all targets together
//   NEAR_SLOTS                 threads, and words, that are found without hashing: a power of two
//   MAX_WAKES                  futex words on which somebody is woken, and pairs of waker and woken
//   RET_OFFSET, ARG_OFFSET     where the fields of the syscall tracepoints begin (from tracefs)
//   WATCH_NEWER_CALLS          defined: with programs for futex_waitv, futex_wait and futex_wake too
//   MAX_WORD_WAITS             defined: waits are also summed for each thread, futex word and operation
//   TIMELINE_PAGES, LONG_WAIT_NS
//                              defined: waits of that length and major faults are told one by one, through a
//                              ring buffer of so many pages of 4 KiB that nobody is woken for
//   MAX_FAULT_PLACES           defined: page faults are also counted for each thread, instruction and 2 MiB
//                              of addresses
//   PIDNS_DEV, PIDNS_INO       the PID namespace ids are wanted in; undefined: the initial one
//
// Uses tracepoint fields and helpers only, no kernel structure, so one text serves every kernel.
#include <linux/types.h>
#include <uapi/linux/bpf_perf_event.h>

#include "hangtrace/current.h"
#include "hangtrace/window_events.h"

enum futex_operation {
  FUTEX_WAIT = 0,
  FUTEX_WAKE = 1,
  FUTEX_REQUEUE = 3,
  FUTEX_CMP_REQUEUE = 4,
  FUTEX_WAKE_OP = 5,
  FUTEX_LOCK_PI = 6,
  FUTEX_UNLOCK_PI = 7,
  FUTEX_WAIT_BITSET = 9,
  FUTEX_WAKE_BITSET = 10,
  FUTEX_WAIT_REQUEUE_PI = 11,
  FUTEX_CMP_REQUEUE_PI = 12,
  FUTEX_LOCK_PI2 = 13,
  FUTEX_WAITV = 64,  // ours, for the system call of this name, which has no operation number
  FUTEX_OPERATION = 0x7f,
  FUTEX_PRIVATE = 0x80,
};

// Errors as the kernel hands them to the exit tracepoint: the restart codes are not yet turned into EINTR.
enum { EINTR = 4, EAGAIN = 11, ETIMEDOUT = 110, ERESTARTSYS = 512, ERESTART_RESTARTBLOCK = 516 };

// Who wakes on one futex word. A waiter's waker is known only if all wake-ups on its word since it began to
// wait came from one thread; `contested_ns` is the last moment at which that was not so.
struct word_key {
  u64 uaddr;
  u32 tgid;
  u32 unused;
};
struct word_wakes {
  u64 last_ns;
  u64 contested_ns;
  u64 in_flight;  // wake calls entered and not yet returned
  u32 waker_tid;
  u32 unused;
};

// A look-up in a hash table costs 30 ns, one in an array next to nothing, and each call of futex needs some.
// So both threads and words lie in arrays first: at the one slot that their number gives, if nobody else has
// taken it, else in the hash table. A slot is never given up. Who has taken it is settled by `claims`, in
// which only one can insert.
struct near_wakes {
  struct word_key key;
  struct word_wakes wakes;
};

// Nothing counts while it is 0, so that all probes start and end at the same moment however long attaching
// takes.
BPF_ARRAY(gate, u32, 1);
BPF_HASH(targets, u32, u32, MAX_TARGETS);
BPF_HASH(claims, struct claim_key, struct claim, 2 * NEAR_SLOTS);
BPF_ARRAY(near_threads, struct near_thread, NEAR_SLOTS);
BPF_HASH(threads, u32, struct thread_record, MAX_THREADS);
// What a new record is copied from, which does not fit on the stack.
BPF_ARRAY(no_thread, struct thread_record, 1);
BPF_ARRAY(near_words, struct near_wakes, NEAR_SLOTS);
BPF_HASH(words, struct word_key, struct word_wakes, MAX_WAKES);
BPF_HASH(pairs, struct wake_pair, u64, MAX_WAKES);
BPF_ARRAY(lost, u64, LOST_KINDS);
#ifdef MAX_WORD_WAITS
BPF_HASH(word_waits, struct word_waits_key, struct word_waits, MAX_WORD_WAITS);
#endif
#ifdef MAX_FAULT_PLACES
BPF_HASH(fault_places, struct fault_place, struct place_faults, MAX_FAULT_PLACES);
#endif
#ifdef TIMELINE_PAGES
BPF_RINGBUF_OUTPUT(timeline, TIMELINE_PAGES);
#endif

// The layout of the syscall tracepoints: common fields and the number, then arguments of eight bytes each.
static __always_inline u64 argument(void* ctx, int index) {
  return *(u64*)((char*)ctx + ARG_OFFSET + 8 * index);
}

static __always_inline s64 returned(void* ctx) {
  return *(s64*)((char*)ctx + RET_OFFSET);
}

static __always_inline void count_lost(int kind) {
  u64* count = lost.lookup(&kind);
  if (count) __sync_fetch_and_add(count, 1);
}

static __always_inline int counting(void) {
  int zero = 0;
  u32* open = gate.lookup(&zero);
  return open && *open;
}

// The claim to a slot if it is for this key, else NULL; `takes`: and claims it where nobody has.
static __always_inline struct claim* claim_of(u32 table, u32 slot, u64 first, u32 second, u32 takes) {
  struct claim_key key = {.table = table, .slot = slot};
  struct claim* claim = claims.lookup(&key);
  if (!claim && takes) {
    struct claim mine = {.first = first, .second = second, .taker_tid = takes};
    claims.insert(&key, &mine);
    claim = claims.lookup(&key);
  }
  return claim && claim->first == first && claim->second == second ? claim : NULL;
}

// The record of the current thread if it has one.
static __always_inline struct thread_record* known_thread(u64 ids) {
  u32 tgid = ids >> 32, tid = ids;
  u32 slot = tid & (NEAR_SLOTS - 1);
  struct near_thread* near = near_threads.lookup(&slot);
  // Only the thread itself writes what this compares with.
  if (near && near->tid == tid && near->record.sums.tgid == tgid) return &near->record;
  if (!targets.lookup(&tgid)) return NULL;
  struct thread_record* far = threads.lookup(&tid);
  return far && far->sums.tgid == tgid ? far : NULL;
}

static __always_inline struct thread_record* new_thread(u64 ids) {
  u32 tgid = ids >> 32, tid = ids;
  u32 slot = tid & (NEAR_SLOTS - 1);
  int zero = 0;
  struct near_thread* near = near_threads.lookup(&slot);
  if (near && !near->tid && claim_of(OF_THREADS, slot, tid, tgid, tid)) {
    near->record.sums.tgid = tgid;
    near->tid = tid;
    return &near->record;
  }
  struct thread_record* fresh = no_thread.lookup(&zero);
  if (!fresh) return NULL;
  threads.insert(&tid, fresh);
  struct thread_record* far = threads.lookup(&tid);
  if (far && !far->sums.tgid) far->sums.tgid = tgid;
  // The number of a thread that ended may come back in another process.
  if (!far || far->sums.tgid != tgid) {
    count_lost(LOST_THREAD);
    return NULL;
  }
  return far;
}

// The record of the current thread of a target, made when it is not there; NULL for everybody else.
static __always_inline struct thread_record* current_thread(u64 ids) {
  struct thread_record* known = known_thread(ids);
  if (known) return known;
  u32 tgid = ids >> 32;
  return targets.lookup(&tgid) ? new_thread(ids) : NULL;
}

// Who wakes on a word of the current process. `waker_tid`: and that this thread does, if it is the first;
// or 0.
static __always_inline struct word_wakes* wakes_on(u64 uaddr, u32 tgid, u32 waker_tid) {
  u32 slot = ((uaddr ^ (u64)tgid << 40) * 0x9E3779B97F4A7C15ull) >> 32 & (NEAR_SLOTS - 1);
  struct near_wakes* near = near_words.lookup(&slot);
  if (!near) return NULL;
  if (near->key.uaddr == uaddr && near->key.tgid == tgid) return &near->wakes;
  // Who takes it may be about to write its key, which is seen from here in any order.
  if (!near->key.uaddr || near->key.uaddr == uaddr) {
    struct claim* claim = claim_of(OF_WORDS, slot, uaddr, tgid, waker_tid);
    if (claim) {
      if (!near->wakes.waker_tid) near->wakes.waker_tid = claim->taker_tid;
      near->key.tgid = tgid;
      near->key.uaddr = uaddr;
      return &near->wakes;
    }
  }
  struct word_key key = {.uaddr = uaddr, .tgid = tgid};
  struct word_wakes* far = words.lookup(&key);
  if (!far && waker_tid) {
    struct word_wakes fresh = {.waker_tid = waker_tid};
    words.insert(&key, &fresh);
    far = words.lookup(&key);
  }
  return far;
}

static __always_inline int is_wait(u32 operation) {
  operation &= FUTEX_OPERATION;
  return operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET || operation == FUTEX_LOCK_PI ||
         operation == FUTEX_LOCK_PI2 || operation == FUTEX_WAIT_REQUEUE_PI || operation == FUTEX_WAITV;
}

// The calls that wake and return how many. A requeue returns a sum of woken and moved ones, an unlock of a
// priority-inheriting mutex returns nothing: neither can be counted.
static __always_inline int is_counted_wake(u32 operation) {
  operation &= FUTEX_OPERATION;
  return operation == FUTEX_WAKE || operation == FUTEX_WAKE_BITSET || operation == FUTEX_WAKE_OP;
}

static __always_inline int is_requeue(u32 operation) {
  operation &= FUTEX_OPERATION;
  return operation == FUTEX_REQUEUE || operation == FUTEX_CMP_REQUEUE || operation == FUTEX_CMP_REQUEUE_PI;
}

// What wakes, or may move, others that wait on the same word.
static __always_inline int is_wake(u32 operation) {
  return is_counted_wake(operation) || is_requeue(operation) ||
         (operation & FUTEX_OPERATION) == FUTEX_UNLOCK_PI;
}

// A word that other processes may use too is never matched: their wake-ups are not seen.
static __always_inline int is_matched(u32 operation) {
  u32 plain = operation & FUTEX_OPERATION;
  return operation & FUTEX_PRIVATE && plain != FUTEX_WAIT_REQUEUE_PI && plain != FUTEX_WAITV;
}

static __always_inline void wake_begins(u64 ids, u64 uaddr, u32 operation, u64 now) {
  u32 tid = ids;
  struct word_wakes* word = wakes_on(uaddr, ids >> 32, tid);
  if (!word) {
    count_lost(LOST_WAKE);
    return;
  }
  if (word->waker_tid != tid) {
    word->contested_ns = word->in_flight ? now : word->last_ns;
    word->waker_tid = tid;
  }
  // After a requeue, waiters of this word sleep on another one, where their waker would be looked for in
  // vain.
  if (is_requeue(operation)) word->contested_ns = now;
  word->last_ns = now;
  __sync_fetch_and_add(&word->in_flight, 1);
}

static __always_inline void wake_ends(u64 ids, u64 uaddr, u64 now) {
  u32 tid = ids;
  struct word_wakes* word = wakes_on(uaddr, ids >> 32, 0);
  if (!word) return;
  if (word->in_flight) __sync_fetch_and_add(&word->in_flight, -1);
  if (word->waker_tid == tid)
    word->last_ns = now;
  else
    word->contested_ns = now;
}

// Who woke the current thread, 0 if that is not certain.
static __always_inline u32 count_pair(u64 ids, struct thread_record* thread) {
  struct word_wakes* word = wakes_on(thread->sums.uaddr, ids >> 32, 0);
  u64 since = thread->sums.waiting_since_ns;
  if (!word || word->last_ns <= since || word->contested_ns > since) return 0;
  struct wake_pair pair = {.waker_tid = word->waker_tid, .woken_tid = ids};
  if (!thread->pair.waker_tid) thread->pair = pair;
  if (thread->pair.waker_tid == pair.waker_tid) {
    thread->pair_count++;
    return pair.waker_tid;
  }
  u64* count = pairs.lookup(&pair);
  if (!count) {
    u64 none = 0;
    pairs.insert(&pair, &none);
    count = pairs.lookup(&pair);
  }
  if (count)
    ++*count;  // the woken thread is the current one: nobody else writes this pair
  else
    count_lost(LOST_PAIR);
  return pair.waker_tid;
}

#ifdef TIMELINE_PAGES
static __always_inline void tell(u64 ids, u32 kind, u64 since_ns, u64 took_ns, u64 object, u32 other) {
  struct timed_event event = {.at_ns = since_ns,
                              .took_ns = took_ns,
                              .object = object,
                              .tid = ids,
                              .tgid = ids >> 32,
                              .other = other,
                              .kind = kind};
  if (timeline.ringbuf_output(&event, sizeof(event), BPF_RB_NO_WAKEUP)) count_lost(LOST_EVENT);
}
#endif

#ifdef MAX_WORD_WAITS
static __always_inline struct word_waits* waits_on(u32 tid, struct thread_record* thread) {
  struct word_waits_key key = {.uaddr = thread->sums.uaddr, .tid = tid, .operation = thread->sums.operation};
  struct near_word* near = &thread->words[key.uaddr >> 2 & (NEAR_WORDS - 1)];
  if (!near->key.tid) {
    near->key = key;
    near->waits.tgid = thread->sums.tgid;
  }
  if (near->key.uaddr == key.uaddr && near->key.operation == key.operation) return &near->waits;
  struct word_waits* far = word_waits.lookup(&key);
  if (!far) {
    struct word_waits fresh = {.tgid = thread->sums.tgid};
    word_waits.insert(&key, &fresh);
    far = word_waits.lookup(&key);
  }
  return far;
}

static __always_inline void sum_wait(u32 tid, struct thread_record* thread, u64 took, int timed_out) {
  struct word_waits* sums = waits_on(tid, thread);
  if (!sums) {
    count_lost(LOST_SUM);
    return;
  }
  sums->waits++;
  sums->wait_ns += took;
  if (took > sums->longest_ns) sums->longest_ns = took;
  if (timed_out) sums->timed_out++;
  u64 slot = bpf_log2l(took >> 10);
  // The verifier of Linux 6.1 knows a bound of the register alone that was compared, so no copy of it is to
  // be used.
  asm volatile("" : "+r"(slot));
  if (slot >= WAIT_SLOTS) slot = WAIT_SLOTS - 1;
  asm volatile("" : "+r"(slot));
  sums->slots[slot]++;
}
#endif

#ifdef MAX_FAULT_PLACES
static __always_inline void sum_fault(u64 ids, struct bpf_perf_event_data* ctx, int major) {
  u64 code = PT_REGS_IP(&ctx->regs);
  // The kernel's addresses are those with the highest bit set.
  struct fault_place key = {.place = ctx->addr >> FAULT_PLACE_SHIFT,
                            .code = (s64)code < 0 ? 0 : code,
                            .tid = ids,
                            .tgid = ids >> 32};
  struct place_faults* sums = fault_places.lookup(&key);
  if (!sums) {
    struct place_faults fresh = {};
    fault_places.insert(&key, &fresh);
    sums = fault_places.lookup(&key);
    if (!sums) {
      count_lost(LOST_PLACE);
      return;
    }
  }
  if (major)
    sums->major++;
  else
    sums->minor++;
}
#endif

static __always_inline int call_begins(u64 uaddr, u32 operation) {
  if (!counting()) return 0;
  u64 ids = current_ids();
  struct thread_record* thread = current_thread(ids);
  if (!thread) return 0;
  u64 now = bpf_ktime_get_ns();
  thread->sums.uaddr = uaddr;
  thread->sums.operation = operation;
  thread->sums.waiting_since_ns = now;
  if (is_wake(operation) && operation & FUTEX_PRIVATE) wake_begins(ids, uaddr, operation, now);
  return 0;
}

int futex_enter(void* ctx) {
  return call_begins(argument(ctx, 0), argument(ctx, 1));
}

#ifdef WATCH_NEWER_CALLS
// futex_waitv(waiters, ...): which of the words it sleeps on is not known without reading the target's
// memory.
int futex_waitv_enter(void* ctx) {
  return call_begins(0, FUTEX_WAITV);
}

// futex_wait(uaddr, value, mask, flags, ...), with the same flag for private words as futex.
int futex_wait_enter(void* ctx) {
  return call_begins(argument(ctx, 0), FUTEX_WAIT_BITSET | (argument(ctx, 3) & FUTEX_PRIVATE));
}

// futex_wake(uaddr, mask, count, flags)
int futex_wake_enter(void* ctx) {
  return call_begins(argument(ctx, 0), FUTEX_WAKE_BITSET | (argument(ctx, 3) & FUTEX_PRIVATE));
}

#endif

// The exit of all these calls.
int futex_exit(void* ctx) {
  if (!counting()) return 0;
  u64 ids = current_ids();
  u32 tid = ids;
  struct thread_record* thread = known_thread(ids);
  if (!thread || !thread->sums.waiting_since_ns) return 0;
  u64 now = bpf_ktime_get_ns();
  u64 took = now - thread->sums.waiting_since_ns;
  u32 operation = thread->sums.operation;
  s64 result = returned(ctx);
  if (is_wait(operation)) {
    if (result == -EAGAIN) {
      thread->sums.not_slept++;
    } else if (result >= 0 || result == -ETIMEDOUT || result == -EINTR ||
               (result <= -ERESTARTSYS && result >= -ERESTART_RESTARTBLOCK)) {
      thread->sums.waits++;
      thread->sums.wait_ns += took;
      if (took > thread->sums.longest_ns) {
        thread->sums.longest_ns = took;
        thread->sums.longest_uaddr = thread->sums.uaddr;
      }
      u32 waker = 0;
      if (result == -ETIMEDOUT)
        thread->sums.timed_out++;
      else if (result < 0)
        thread->sums.interrupted++;
      else if (is_matched(operation))
        waker = count_pair(ids, thread);
#ifdef MAX_WORD_WAITS
      sum_wait(tid, thread, took, result == -ETIMEDOUT);
#endif
#ifdef TIMELINE_PAGES
      if (took >= LONG_WAIT_NS)
        tell(ids, EVENT_FUTEX_WAIT, thread->sums.waiting_since_ns, took, thread->sums.uaddr, waker);
#endif
    }
  } else if (is_wake(operation)) {
    if (is_counted_wake(operation) && result >= 0) {
      thread->sums.wake_calls++;
      thread->sums.woken += result;
    }
    if (operation & FUTEX_PRIVATE) wake_ends(ids, thread->sums.uaddr, now);
  }
  thread->sums.waiting_since_ns = 0;
  return 0;
}

int minor_fault(struct bpf_perf_event_data* ctx) {
  if (!counting()) return 0;
  u64 ids = current_ids();
  struct thread_record* thread = current_thread(ids);
  if (!thread) return 0;
  thread->sums.minor_faults++;
#ifdef MAX_FAULT_PLACES
  sum_fault(ids, ctx, 0);
#endif
  return 0;
}

int major_fault(struct bpf_perf_event_data* ctx) {
  if (!counting()) return 0;
  u64 ids = current_ids();
  struct thread_record* thread = current_thread(ids);
  if (!thread) return 0;
  thread->sums.major_faults++;
  thread->sums.last_major_address = ctx->addr;
#ifdef MAX_FAULT_PLACES
  sum_fault(ids, ctx, 1);
#endif
#ifdef TIMELINE_PAGES
  tell(ids, EVENT_MAJOR_FAULT, bpf_ktime_get_ns(), 0, ctx->addr, 0);
#endif
  return 0;
}
