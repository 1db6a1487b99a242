/* N threads, each holds a mutex and wants the one of the next. usage: mutex_cycle N */
#include <pthread.h>
#include <sys/prctl.h>

#include "announce.h"

enum { MOST = 8 };
static pthread_mutex_t mutexes[MOST];
static pthread_barrier_t all_hold_one;
static int threads;

static void* transfer(void* argument) {
  int self = (int)(long)argument;
  char role[32];
  snprintf(role, sizeof role, "thread%d", self);
  prctl(PR_SET_NAME, role);
  pthread_mutex_lock(&mutexes[self]);
  pthread_barrier_wait(&all_hold_one);
  announce(role);
  pthread_mutex_lock(&mutexes[(self + 1) % threads]);
  return NULL;
}

int main(int argc, char** argv) {
  threads = argc > 1 ? atoi(argv[1]) : 2;
  if (threads < 2 || threads > MOST) {
    return 2;
  }
  pthread_t handles[MOST];
  pthread_barrier_init(&all_hold_one, NULL, (unsigned)threads);
  for (long i = 0; i < threads; ++i) {
    pthread_mutex_init(&mutexes[i], NULL);
    pthread_create(&handles[i], NULL, transfer, (void*)i);
  }
  for (int i = 0; i < threads; ++i) {
    pthread_join(handles[i], NULL);
  }
  return 0;
}
