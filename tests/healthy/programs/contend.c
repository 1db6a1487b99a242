// Threads that want the same lock all the time. usage: contend mutex|rwlock|condition|semaphore|barrier
#include <pthread.h>
#include <semaphore.h>
#include <string.h>

#include "announce.h"

enum { THREADS = 4, ROUNDS_BEFORE_READY = 1000 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t semaphore;
static long turn;
static volatile unsigned work;

static void compute(void) {
  for (int i = 0; i < 2000; ++i) ++work;
}

static void by_mutex(long number) {
  (void)number;
  pthread_mutex_lock(&mutex);
  compute();
  pthread_mutex_unlock(&mutex);
}

static void by_rwlock(long number) {
  if (number == 0) {
    pthread_rwlock_wrlock(&rwlock);
  } else {
    pthread_rwlock_rdlock(&rwlock);
  }
  compute();
  pthread_rwlock_unlock(&rwlock);
}

static void by_condition(long number) {
  pthread_mutex_lock(&mutex);
  while (turn % THREADS != number) pthread_cond_wait(&changed, &mutex);
  compute();
  ++turn;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static void by_semaphore(long number) {
  (void)number;
  sem_wait(&semaphore);
  compute();
  sem_post(&semaphore);
}

static void by_barrier(long number) {
  (void)number;
  compute();
  pthread_barrier_wait(&barrier);
}

static void (*one_round)(long);

static void* run(void* argument) {
  long number = (long)argument;
  for (long round = 0;; ++round) {
    one_round(number);
    if (number == 0 && round == ROUNDS_BEFORE_READY) announce("main");
  }
  return NULL;
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*round)(long);
  } kinds[] = {{"mutex", by_mutex},
               {"rwlock", by_rwlock},
               {"condition", by_condition},
               {"semaphore", by_semaphore},
               {"barrier", by_barrier}};
  for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
    if (argc > 1 && !strcmp(argv[1], kinds[i].name)) one_round = kinds[i].round;
  }
  if (!one_round) return 2;
  pthread_barrier_init(&barrier, NULL, THREADS);
  sem_init(&semaphore, 0, 2);
  pthread_t threads[THREADS];
  for (long i = 0; i < THREADS; ++i) {
    if (pthread_create(&threads[i], NULL, run, (void*)i)) return 1;
  }
  for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
}
