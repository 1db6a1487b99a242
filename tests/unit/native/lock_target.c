// Threads that wait for every kind of lock of the C library, each named for what it waits in. All that has an
// owner is owned by the thread "owner". Prints "ready" and a process id a line: its own, and that of a child
// which has inherited a locked mutex through fork. Ends when its standard input does.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t normal = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t recursive, errorcheck, adaptive, robust, priority;
static pthread_mutex_t timed = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t* shared;
static pthread_rwlock_t written = PTHREAD_RWLOCK_INITIALIZER;
static pthread_rwlock_t read_held = PTHREAD_RWLOCK_INITIALIZER;
static pthread_rwlock_t writers_first;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t condition_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t signalled = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t signalled_mutex = PTHREAD_MUTEX_INITIALIZER;
static int signalled_waits;
static sem_t semaphore;
static pthread_barrier_t barrier;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static sem_t once_entered;
static pthread_t joined;
static sem_t owned;

static void for_ever(void) {
  for (;;) {
    poll(NULL, 0, -1);
  }
}

static struct timespec far_away(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  time.tv_sec += 1000000;
  return time;
}

static void initialise(void) {
  sem_post(&once_entered);
  for_ever();
}

static void own(void) {
  pthread_mutex_t* const all[] = {&normal, &recursive, &errorcheck, &adaptive,
                                  &robust, &priority,  &timed,      shared};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    pthread_mutex_lock(all[i]);
  }
  pthread_rwlock_wrlock(&written);
  sem_post(&owned);
  for_ever();
}

static void timed_lock(void) {
  const struct timespec end = far_away(CLOCK_REALTIME);
  pthread_mutex_timedlock(&timed, &end);
}

static void timed_priority(void) {
  const struct timespec end = far_away(CLOCK_REALTIME);
  pthread_mutex_timedlock(&priority, &end);
}

static void wait_condition(void) {
  pthread_mutex_lock(&condition_mutex);
  pthread_cond_wait(&condition, &condition_mutex);
}

static void wait_condition_timed(void) {
  const struct timespec end = far_away(CLOCK_REALTIME);
  pthread_mutex_lock(&condition_mutex);
  pthread_cond_timedwait(&condition, &condition_mutex, &end);
}

static void take_mutex_again(void) {
  pthread_mutex_lock(&signalled_mutex);
  signalled_waits = 1;
  pthread_cond_wait(&signalled, &signalled_mutex);
}

static void wait_semaphore_timed(void) {
  const struct timespec end = far_away(CLOCK_REALTIME);
  sem_timedwait(&semaphore, &end);
}

static void lock_normal(void) {
  pthread_mutex_lock(&normal);
}
static void lock_recursive(void) {
  pthread_mutex_lock(&recursive);
}
static void lock_errorcheck(void) {
  pthread_mutex_lock(&errorcheck);
}
static void lock_adaptive(void) {
  pthread_mutex_lock(&adaptive);
}
static void lock_robust(void) {
  pthread_mutex_lock(&robust);
}
static void lock_priority(void) {
  pthread_mutex_lock(&priority);
}
static void lock_shared(void) {
  pthread_mutex_lock(shared);
}
static void read_written(void) {
  pthread_rwlock_rdlock(&written);
}
static void write_written(void) {
  pthread_rwlock_wrlock(&written);
}
static void write_read(void) {
  pthread_rwlock_wrlock(&read_held);
}
static void write_first(void) {
  pthread_rwlock_wrlock(&writers_first);
}
static void read_behind(void) {
  pthread_rwlock_rdlock(&writers_first);
}
static void wait_semaphore(void) {
  sem_wait(&semaphore);
}
static void wait_barrier(void) {
  pthread_barrier_wait(&barrier);
}
static void run_once(void) {
  pthread_once(&once, initialise);
}
static void join(void) {
  pthread_join(joined, NULL);
}

struct Role {
  const char* name;
  void (*run)(void);
};

static const struct Role roles[] = {
    {"normal", lock_normal},
    {"recursive", lock_recursive},
    {"errorcheck", lock_errorcheck},
    {"adaptive", lock_adaptive},
    {"robust", lock_robust},
    {"pi", lock_priority},
    {"pi-timed", timed_priority},
    {"timed", timed_lock},
    {"shared", lock_shared},
    {"rwlock-read", read_written},
    {"rwlock-write", write_written},
    {"rwlock-readers", write_read},
    {"rwlock-first", write_first},
    {"condition", wait_condition},
    {"condition-timed", wait_condition_timed},
    {"retake", take_mutex_again},
    {"semaphore", wait_semaphore},
    {"semaphore-timed", wait_semaphore_timed},
    {"barrier", wait_barrier},
    {"once", run_once},
    {"join", join},
};

static void* start(void* argument) {
  const struct Role* const role = argument;
  prctl(PR_SET_NAME, role->name);
  role->run();
  return NULL;
}

static pthread_t spawn(const struct Role* role) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, start, (void*)role) != 0) {
    abort();
  }
  return thread;
}

static void initialise_mutex(pthread_mutex_t* mutex, int type, int is_robust, int protocol, int is_shared) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, type);
  pthread_mutexattr_setrobust(&attributes, is_robust);
  pthread_mutexattr_setprotocol(&attributes, protocol);
  pthread_mutexattr_setpshared(&attributes, is_shared);
  pthread_mutex_init(mutex, &attributes);
}

int main(void) {
  initialise_mutex(&recursive, PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE, 0);
  initialise_mutex(&errorcheck, PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE, 0);
  initialise_mutex(&adaptive, PTHREAD_MUTEX_ADAPTIVE_NP, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE, 0);
  initialise_mutex(&robust, PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ROBUST, PTHREAD_PRIO_NONE, 0);
  initialise_mutex(&priority, PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_INHERIT, 0);
  shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  initialise_mutex(shared, PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE, 1);
  pthread_rwlockattr_t attributes;
  pthread_rwlockattr_init(&attributes);
  pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&writers_first, &attributes);
  pthread_rwlock_rdlock(&writers_first);
  pthread_rwlock_rdlock(&read_held);
  sem_init(&semaphore, 0, 0);
  sem_init(&once_entered, 0, 0);
  sem_init(&owned, 0, 0);
  pthread_barrier_init(&barrier, NULL, 3);

  static const struct Role joinee = {"joinee", for_ever};
  static const struct Role owner = {"owner", own};
  static const struct Role first = {"initialiser", run_once};
  static const struct Role behind = {"rwlock-behind", read_behind};
  joined = spawn(&joinee);
  spawn(&owner);
  sem_wait(&owned);
  spawn(&first);
  sem_wait(&once_entered);

  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "inherited");
    static const struct Role of_child = {"shared-child", lock_shared};
    spawn(&of_child);
    lock_normal();
    _exit(1);
  }
  for (size_t i = 0; i < sizeof roles / sizeof *roles; ++i) {
    spawn(&roles[i]);
  }
  // A reader is held up behind a writer that waits: known by that no further reader gets in.
  while (pthread_rwlock_tryrdlock(&writers_first) == 0) {
    pthread_rwlock_unlock(&writers_first);
    sched_yield();
  }
  spawn(&behind);
  for (int waits = 0; waits == 0; sched_yield()) {
    pthread_mutex_lock(&signalled_mutex);
    waits = signalled_waits;
    if (waits == 0) {
      pthread_mutex_unlock(&signalled_mutex);
    }
  }
  pthread_cond_signal(&signalled);  // with its mutex kept: the waiter has to wait for that
  printf("ready\n%d\n%d\n", getpid(), child);
  fflush(stdout);
  char byte;
  return read(0, &byte, 1) < 0;
}
