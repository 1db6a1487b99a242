/* Two that want each other's mutexes, of a type that only its owner can unlock, or that anybody can who has
   the memory. usage: ring robust|normal|recursive: two processes, with the mutexes in shared memory; two
   threads. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "announce.h"

static const char* const roles[2] = {"debit", "credit"};

static struct shared {
  pthread_mutex_t mutexes[2];
  pthread_barrier_t both_hold_one;
}* shared;

static void* transfer(void* argument) {
  const long self = (long)argument;
  pthread_mutex_lock(&shared->mutexes[self]);
  pthread_barrier_wait(&shared->both_hold_one);
  announce(roles[self]);
  pthread_mutex_lock(&shared->mutexes[1 - self]);
  return NULL;
}

static void make(int processes, int robust) {
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_mutexattr_t type;
  pthread_mutexattr_init(&type);
  pthread_mutexattr_settype(&type, processes && !robust ? PTHREAD_MUTEX_NORMAL : PTHREAD_MUTEX_RECURSIVE);
  pthread_barrierattr_t meeting;
  pthread_barrierattr_init(&meeting);
  if (robust) {
    pthread_mutexattr_setrobust(&type, PTHREAD_MUTEX_ROBUST);
  }
  if (processes) {
    pthread_mutexattr_setpshared(&type, PTHREAD_PROCESS_SHARED);
    pthread_barrierattr_setpshared(&meeting, PTHREAD_PROCESS_SHARED);
  }
  pthread_mutex_init(&shared->mutexes[0], &type);
  pthread_mutex_init(&shared->mutexes[1], &type);
  pthread_barrier_init(&shared->both_hold_one, &meeting, 2);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    return 2;
  }
  const int processes = strcmp(argv[1], "recursive") != 0;
  make(processes, strcmp(argv[1], "robust") == 0);
  pthread_t threads[2];
  for (long self = 0; self < 2; ++self) {
    if (!processes) {
      pthread_create(&threads[self], NULL, transfer, (void*)self);
    } else if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      transfer((void*)self);
      _exit(0);
    }
  }
  if (!processes) {
    pthread_join(threads[0], NULL);
  }
  while (wait(NULL) > 0) {
  }
  return 0;
}
