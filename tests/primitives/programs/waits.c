/* The primitives of C: pthread, C11 and POSIX. See stage.h. */
#include <errno.h>
#include <semaphore.h>
#include <threads.h>

#include "stage.h"

typedef struct {
  pthread_mutex_t mutex;
  pthread_cond_t condition;
} Monitor;

static pthread_mutex_t* mutex(int i) {
  return (pthread_mutex_t*)&objects[i];
}
static pthread_rwlock_t* rwlock(int i) {
  return (pthread_rwlock_t*)&objects[i];
}
static Monitor* monitor(int i) {
  return (Monitor*)&objects[i];
}
static sem_t* semaphore(int i) {
  return (sem_t*)&objects[i];
}
static pthread_barrier_t* barrier(int i) {
  return (pthread_barrier_t*)&objects[i];
}

static const struct timespec* in(clockid_t clock, long nanoseconds) {
  static _Thread_local struct timespec then;
  clock_gettime(clock, &then);
  then.tv_nsec += nanoseconds % 1000000000;
  then.tv_sec += nanoseconds / 1000000000 + then.tv_nsec / 1000000000;
  then.tv_nsec %= 1000000000;
  return &then;
}

static const struct timespec* later(clockid_t clock) {
  return in(clock, LONG * 1000000000L);
}

/* -- mutexes -- */

static void mutex_of(int i, int type, int robust, int protocol, int shared) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, type);
  pthread_mutexattr_setrobust(&attributes, robust);
  if (pthread_mutexattr_setprotocol(&attributes, protocol) != 0) {
    _exit(4);
  }
  pthread_mutexattr_setpshared(&attributes, shared);
  pthread_mutex_init(mutex(i), &attributes);
}

enum { STALLED = PTHREAD_MUTEX_STALLED, ROBUST = PTHREAD_MUTEX_ROBUST };
enum { PRIVATE = PTHREAD_PROCESS_PRIVATE, SHARED = PTHREAD_PROCESS_SHARED };
enum { PLAIN = PTHREAD_PRIO_NONE, INHERIT = PTHREAD_PRIO_INHERIT };

static void make_normal(int i) {
  mutex_of(i, PTHREAD_MUTEX_NORMAL, STALLED, PLAIN, PRIVATE);
}
static void make_recursive(int i) {
  mutex_of(i, PTHREAD_MUTEX_RECURSIVE, STALLED, PLAIN, PRIVATE);
}
static void make_errorcheck(int i) {
  mutex_of(i, PTHREAD_MUTEX_ERRORCHECK, STALLED, PLAIN, PRIVATE);
}
static void make_robust(int i) {
  mutex_of(i, PTHREAD_MUTEX_NORMAL, ROBUST, PLAIN, PRIVATE);
}
static void make_pi(int i) {
  mutex_of(i, PTHREAD_MUTEX_NORMAL, STALLED, INHERIT, PRIVATE);
}
static void make_shared(int i) {
  mutex_of(i, PTHREAD_MUTEX_NORMAL, STALLED, PLAIN, SHARED);
}
static void make_shared_recursive(int i) {
  mutex_of(i, PTHREAD_MUTEX_RECURSIVE, STALLED, PLAIN, SHARED);
}
static void make_shared_robust(int i) {
  mutex_of(i, PTHREAD_MUTEX_NORMAL, ROBUST, PLAIN, SHARED);
}
static void make_shared_pi(int i) {
  mutex_of(i, PTHREAD_MUTEX_NORMAL, STALLED, INHERIT, SHARED);
}

static void lock(int i) {
  pthread_mutex_lock(mutex(i));
}

static void want_mutex(int i) {
  about_to_want(mutex(i));
  pthread_mutex_lock(mutex(i));
}

static void want_timed(int i) {
  about_to_want(mutex(i));
  pthread_mutex_timedlock(mutex(i), later(CLOCK_REALTIME));
}

static void want_again(int i) {
  about_to_want(mutex(i));
  while (pthread_mutex_timedlock(mutex(i), in(CLOCK_REALTIME, 40000000)) == ETIMEDOUT) {
  }
}

/* Gives up its own now and then, as one does against deadlocks. */
static void want_with_backoff(int i) {
  const int own = (i + ring - 1) % ring;
  about_to_want(mutex(i));
  for (;;) {
    if (pthread_mutex_timedlock(mutex(i), in(CLOCK_REALTIME, 400000000)) == 0) {
      pthread_mutex_unlock(mutex(i));
    }
    pthread_mutex_unlock(mutex(own));
    pthread_mutex_lock(mutex(own));
  }
}

/* -- read-write locks -- */

static void make_rwlock(int i) {
  pthread_rwlock_init(rwlock(i), NULL);
}

static void make_shared_rwlock(int i) {
  pthread_rwlockattr_t attributes;
  pthread_rwlockattr_init(&attributes);
  pthread_rwlockattr_setpshared(&attributes, SHARED);
  pthread_rwlock_init(rwlock(i), &attributes);
}

static void lock_to_read(int i) {
  pthread_rwlock_rdlock(rwlock(i));
}
static void lock_to_write(int i) {
  pthread_rwlock_wrlock(rwlock(i));
}

static void want_to_read(int i) {
  about_to_want(rwlock(i));
  pthread_rwlock_rdlock(rwlock(i));
}

static void want_to_write(int i) {
  about_to_want(rwlock(i));
  pthread_rwlock_wrlock(rwlock(i));
}

static void want_to_read_timed(int i) {
  about_to_want(rwlock(i));
  pthread_rwlock_timedrdlock(rwlock(i), later(CLOCK_REALTIME));
}

static void want_to_write_timed(int i) {
  about_to_want(rwlock(i));
  pthread_rwlock_timedwrlock(rwlock(i), later(CLOCK_REALTIME));
}

/* -- conditions -- */

static void make_monitor(int i) {
  pthread_mutex_init(&monitor(i)->mutex, NULL);
  pthread_cond_init(&monitor(i)->condition, NULL);
}

static void make_shared_monitor(int i) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setpshared(&attributes, SHARED);
  make_shared(i);
  pthread_cond_init(&monitor(i)->condition, &attributes);
}

static void want_signal(int i) {
  pthread_mutex_lock(&monitor(i)->mutex);
  about_to_want(&monitor(i)->condition);
  for (;;) {
    pthread_cond_wait(&monitor(i)->condition, &monitor(i)->mutex);
  }
}

static void want_signal_timed(int i) {
  pthread_mutex_lock(&monitor(i)->mutex);
  about_to_want(&monitor(i)->condition);
  pthread_cond_timedwait(&monitor(i)->condition, &monitor(i)->mutex, later(CLOCK_REALTIME));
}

/* Signalled, but the mutex has been taken by the one who signals. */
static void want_mutex_again(int i) {
  pthread_mutex_lock(&monitor(i)->mutex);
  about_to_want(&monitor(i)->mutex);
  pthread_cond_wait(&monitor(i)->condition, &monitor(i)->mutex);
}

static void signal_and_keep(int i) {
  const struct timespec moment = {0, 1000000};
  for (int tries = 0; tries < 3000; ++tries) {
    pthread_mutex_lock(&monitor(i)->mutex);
    /* __wrefs of glibc, or the head of musl's list: there is a waiter. */
    static const pthread_cond_t none = PTHREAD_COND_INITIALIZER;
    const int waits = memcmp(&monitor(i)->condition, &none, sizeof none) != 0;
    if (waits) {
      pthread_cond_signal(&monitor(i)->condition);
      return;
    }
    pthread_mutex_unlock(&monitor(i)->mutex);
    nanosleep(&moment, NULL);
  }
  _exit(5);
}

/* The one who would signal wants a mutex of the waiter's, who has given up another one only. */
static void wait_inside(int i) {
  pthread_mutex_lock(&monitor(i + 1)->mutex);
  announce("holder");
  pthread_cond_wait(&monitor(i + 1)->condition, &monitor(i + 1)->mutex);
}

/* -- semaphores, barriers, once, join, spin locks -- */

static void make_semaphore(int i) {
  sem_init(semaphore(i), 0, 0);
}
static void make_shared_semaphore(int i) {
  sem_init(semaphore(i), 1, 0);
}

static void want_semaphore(int i) {
  about_to_want(semaphore(i));
  sem_wait(semaphore(i));
}

static void want_semaphore_timed(int i) {
  about_to_want(semaphore(i));
  sem_timedwait(semaphore(i), later(CLOCK_REALTIME));
}

static void make_barrier(int i) {
  pthread_barrier_init(barrier(i), NULL, 2);
}

static void make_shared_barrier(int i) {
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, SHARED);
  pthread_barrier_init(barrier(i), &attributes, 2);
}

static void want_barrier(int i) {
  about_to_want(barrier(i));
  pthread_barrier_wait(barrier(i));
}

static pthread_once_t onces[MEMBERS] = {PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT};

static void initialise(void) {
  pthread_barrier_wait(started);
  announce("holder");
  sleep_long();
}

static void hold_once(int i) {
  pthread_once(&onces[i], initialise);
}

static void want_once(int i) {
  about_to_want(&onces[i]);
  pthread_once(&onces[i], initialise);
}

static _Thread_local int wanted;

static void initialise_by_another(void) {
  pthread_barrier_wait(started);
  be_member((wanted + ring - 1) % ring);
  about_to_want(&onces[wanted]);
  pthread_once(&onces[wanted], initialise_by_another);
}

static void hold_once_in_ring(int i) {
  wanted = (i + 1) % ring;
  pthread_once(&onces[i], initialise_by_another);
}

static void want_end(int i) {
  about_to_want(NULL);
  pthread_join(handles[i], NULL);
}

static void want_end_timed(int i) {
  about_to_want(NULL);
  pthread_timedjoin_np(handles[i], NULL, later(CLOCK_REALTIME));
}

/* The first wants the mutex of the second, which waits for the end of the first. */
static void want_mutex_or_end(int i) {
  about_to_want(NULL);
  if (i == 1) {
    pthread_mutex_lock(mutex(i));
  } else {
    pthread_join(handles[i], NULL);
  }
}

static void make_spin(int i) {
  pthread_spin_init((pthread_spinlock_t*)&objects[i], PRIVATE);
}
static void spin_lock(int i) {
  pthread_spin_lock((pthread_spinlock_t*)&objects[i]);
}

static void want_spin_lock(int i) {
  about_to_want(NULL);
  spin_lock(i);
}

#ifdef __GLIBC__
static FILE* streams[MEMBERS];

static void make_stream(int i) {
  streams[i] = fopen("/dev/null", "w");
}
static void lock_stream(int i) {
  flockfile(streams[i]);
}
static void want_stream(int i) {
  about_to_want(streams[i]->_lock);
  fputs("x", streams[i]);
}
#endif

/* -- C11 -- */

static void make_c11(int i) {
  mtx_init((mtx_t*)&objects[i], mtx_plain);
}
static void make_c11_timed(int i) {
  mtx_init((mtx_t*)&objects[i], mtx_timed);
}
static void c11_lock(int i) {
  mtx_lock((mtx_t*)&objects[i]);
}

static void want_c11(int i) {
  about_to_want(&objects[i]);
  mtx_lock((mtx_t*)&objects[i]);
}

static void want_c11_timed(int i) {
  about_to_want(&objects[i]);
  mtx_timedlock((mtx_t*)&objects[i], later(CLOCK_REALTIME));
}

static mtx_t given_up[MEMBERS];

static void make_c11_condition(int i) {
  mtx_init(&given_up[i], mtx_plain);
  cnd_init((cnd_t*)&objects[i]);
}

static void want_c11_signal(int i) {
  mtx_lock(&given_up[i]);
  about_to_want(&objects[i]);
  for (;;) {
    cnd_wait((cnd_t*)&objects[i], &given_up[i]);
  }
}

/* -- of glibc only -- */

#ifdef __GLIBC__
static void make_adaptive(int i) {
  mutex_of(i, PTHREAD_MUTEX_ADAPTIVE_NP, STALLED, PLAIN, PRIVATE);
}

static void make_for_writers(int i) {
  pthread_rwlockattr_t attributes;
  pthread_rwlockattr_init(&attributes);
  pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(rwlock(i), &attributes);
}

static void want_by_clock(int i) {
  about_to_want(mutex(i));
  pthread_mutex_clocklock(mutex(i), CLOCK_MONOTONIC, later(CLOCK_MONOTONIC));
}

static void want_to_read_by_clock(int i) {
  about_to_want(rwlock(i));
  pthread_rwlock_clockrdlock(rwlock(i), CLOCK_MONOTONIC, later(CLOCK_MONOTONIC));
}

static void want_to_write_by_clock(int i) {
  about_to_want(rwlock(i));
  pthread_rwlock_clockwrlock(rwlock(i), CLOCK_MONOTONIC, later(CLOCK_MONOTONIC));
}

static void want_signal_by_clock(int i) {
  pthread_mutex_lock(&monitor(i)->mutex);
  about_to_want(&monitor(i)->condition);
  pthread_cond_clockwait(&monitor(i)->condition, &monitor(i)->mutex, CLOCK_MONOTONIC, later(CLOCK_MONOTONIC));
}

static void want_semaphore_by_clock(int i) {
  about_to_want(semaphore(i));
  sem_clockwait(semaphore(i), CLOCK_MONOTONIC, later(CLOCK_MONOTONIC));
}

static void want_end_by_clock(int i) {
  about_to_want(NULL);
  pthread_clockjoin_np(handles[i], NULL, CLOCK_MONOTONIC, later(CLOCK_MONOTONIC));
}
#endif

int main(int argc, char** argv) {
  static const Primitive primitives[] = {
      {"mutex", make_normal, lock, want_mutex, NULL, 0},
      {"recursive", make_recursive, lock, want_mutex, NULL, 0},
      {"errorcheck", make_errorcheck, lock, want_mutex, NULL, 0},
      {"robust", make_robust, lock, want_mutex, NULL, 0},
      {"pi", make_pi, lock, want_mutex, NULL, 0},
      {"shared mutex", make_shared, lock, want_mutex, NULL, 1},
      {"shared recursive", make_shared_recursive, lock, want_mutex, NULL, 1},
      {"shared robust", make_shared_robust, lock, want_mutex, NULL, 1},
      {"shared pi", make_shared_pi, lock, want_mutex, NULL, 1},
      {"timedlock", make_normal, lock, want_timed, NULL, 0},
      {"timedlock recursive", make_recursive, lock, want_timed, NULL, 0},
      {"timedlock robust", make_robust, lock, want_timed, NULL, 0},
      {"timedlock pi", make_pi, lock, want_timed, NULL, 0},
      {"timedlock again", make_normal, lock, want_again, NULL, 0},
      {"timedlock backoff", make_normal, lock, want_with_backoff, NULL, 0},
      {"rdlock", make_rwlock, lock_to_write, want_to_read, NULL, 0},
      {"wrlock", make_rwlock, lock_to_write, want_to_write, NULL, 0},
      {"wrlock of readers", make_rwlock, lock_to_read, want_to_write, NULL, 0},
      {"timedrdlock", make_rwlock, lock_to_write, want_to_read_timed, NULL, 0},
      {"timedwrlock", make_rwlock, lock_to_write, want_to_write_timed, NULL, 0},
      {"shared rdlock", make_shared_rwlock, lock_to_write, want_to_read, NULL, 1},
      {"shared wrlock", make_shared_rwlock, lock_to_write, want_to_write, NULL, 1},
      {"condition", make_monitor, NULL, want_signal, NULL, 0},
      {"condition timed", make_monitor, NULL, want_signal_timed, NULL, 0},
      {"condition mutex", make_monitor, NULL, want_mutex_again, signal_and_keep, 0},
      {"condition inside", make_monitor, lock, want_mutex, wait_inside, 0},
      {"shared condition", make_shared_monitor, NULL, want_signal, NULL, 1},
      {"semaphore", make_semaphore, NULL, want_semaphore, NULL, 0},
      {"semaphore timed", make_semaphore, NULL, want_semaphore_timed, NULL, 0},
      {"shared semaphore", make_shared_semaphore, NULL, want_semaphore, NULL, 1},
      {"barrier", make_barrier, NULL, want_barrier, NULL, 0},
      {"shared barrier", make_shared_barrier, NULL, want_barrier, NULL, 1},
      {"once", NULL, hold_once, want_once, NULL, 0},
      {"once in once", NULL, hold_once_in_ring, want_once, NULL, 0},
      {"join", NULL, NULL, want_end, NULL, 0},
      {"timedjoin", NULL, NULL, want_end_timed, NULL, 0},
      {"mutex and join", make_normal, lock, want_mutex_or_end, NULL, 0},
      {"spin", make_spin, spin_lock, want_spin_lock, NULL, 0},
      {"mtx_lock", make_c11, c11_lock, want_c11, NULL, 0},
      {"mtx_timedlock", make_c11_timed, c11_lock, want_c11_timed, NULL, 0},
      {"cnd_wait", make_c11_condition, NULL, want_c11_signal, NULL, 0},
#ifdef __GLIBC__
      {"adaptive", make_adaptive, lock, want_mutex, NULL, 0},
      {"FILE", make_stream, lock_stream, want_stream, NULL, 0},
      {"clocklock", make_normal, lock, want_by_clock, NULL, 0},
      {"clocklock pi", make_pi, lock, want_by_clock, NULL, 0},
      {"clockrdlock", make_rwlock, lock_to_write, want_to_read_by_clock, NULL, 0},
      {"clockwrlock", make_rwlock, lock_to_write, want_to_write_by_clock, NULL, 0},
      {"wrlock preferred", make_for_writers, lock_to_read, want_to_write, NULL, 0},
      {"condition clock", make_monitor, NULL, want_signal_by_clock, NULL, 0},
      {"semaphore clock", make_semaphore, NULL, want_semaphore_by_clock, NULL, 0},
      {"clockjoin", NULL, NULL, want_end_by_clock, NULL, 0},
#endif
  };
  return run(primitives, sizeof primitives / sizeof *primitives, argc, argv);
}
