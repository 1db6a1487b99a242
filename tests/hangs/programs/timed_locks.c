/* Two threads begin with one of two locks each and ask for the other one with a timeout, or between naps,
   again and again. usage: timed_locks mutex|rwlock keep|give-up, timed_locks mutex ask|ask-give-up */
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "announce.h"

enum { TRY_MS = 400, NAP_MS = 50 };

static int shared, gives_up, asks;
static pthread_mutex_t mutexes[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static pthread_rwlock_t rwlocks[2] = {PTHREAD_RWLOCK_INITIALIZER, PTHREAD_RWLOCK_INITIALIZER};
static pthread_barrier_t both_hold_one;

static void lock(int which) {
  if (shared) {
    pthread_rwlock_wrlock(&rwlocks[which]);
  } else {
    pthread_mutex_lock(&mutexes[which]);
  }
}

static void unlock(int which) {
  if (shared) {
    pthread_rwlock_unlock(&rwlocks[which]);
  } else {
    pthread_mutex_unlock(&mutexes[which]);
  }
}

static int try_for_a_while(int which) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  long nanoseconds = until.tv_nsec + TRY_MS * 1000000L;
  until.tv_sec += nanoseconds / 1000000000L;
  until.tv_nsec = nanoseconds % 1000000000L;
  return shared ? pthread_rwlock_timedwrlock(&rwlocks[which], &until)
                : pthread_mutex_timedlock(&mutexes[which], &until);
}

static void nap(void) {
  const struct timespec time = {0, NAP_MS * 1000000L};
  nanosleep(&time, NULL);
}

static void ask_and_keep(int mine) {
  while (pthread_mutex_trylock(&mutexes[1 - mine]) != 0) {
    nap();
  }
}

static void ask_and_give_up(int mine) {
  while (pthread_mutex_trylock(&mutexes[1 - mine]) != 0) {
    unlock(mine);
    nap();
    lock(mine);
  }
}

static void* transfer(void* argument) {
  int mine = (int)(long)argument;
  const char* role = mine == 0 ? "debit" : "credit";
  prctl(PR_SET_NAME, role);
  lock(mine);
  pthread_barrier_wait(&both_hold_one);
  announce(role);
  while (asks) {
    if (gives_up) {
      ask_and_give_up(mine);
    } else {
      ask_and_keep(mine);
    }
    unlock(1 - mine);
  }
  for (;;) {
    if (try_for_a_while(1 - mine) == 0) {
      unlock(1 - mine);
    }
    if (gives_up) {
      unlock(mine);
      lock(mine);
    }
  }
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  shared = strcmp(argv[1], "rwlock") == 0;
  gives_up = strstr(argv[2], "give-up") != NULL;
  asks = strncmp(argv[2], "ask", 3) == 0;
  pthread_t handles[2];
  pthread_barrier_init(&both_hold_one, NULL, 2);
  for (long i = 0; i < 2; ++i) {
    pthread_create(&handles[i], NULL, transfer, (void*)i);
  }
  for (int i = 0; i < 2; ++i) {
    pthread_join(handles[i], NULL);
  }
  return 0;
}
