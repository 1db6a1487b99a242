/* Two threads each keep a mutex that the other one wants, and a third one naps beside them.
   usage: bystander unlocks|cancels|beats|signals|stands: it unlocks one, or cancels one, when it wakes up; or
   does neither, again and again. With `signals` the mutexes refuse others, and it sends a signal whose
   handler unlocks one in the thread that has it; with `stands` there is no such handler. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#include "announce.h"

enum { NAP_S = 45 };

static pthread_mutex_t mutexes[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static pthread_barrier_t both_hold_one;

static void give_back(void* mutex) {
  pthread_mutex_unlock(mutex);
}

static void on_signal(int number) {
  (void)number;
  pthread_mutex_unlock(&mutexes[0]);
}

static void* transfer(void* argument) {
  const long mine = (long)argument;
  const char* role = mine == 0 ? "debit" : "credit";
  prctl(PR_SET_NAME, role);
  pthread_mutex_lock(&mutexes[mine]);
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  pthread_cleanup_push(give_back, &mutexes[mine]);
  pthread_barrier_wait(&both_hold_one);
  announce(role);
  pthread_mutex_lock(&mutexes[1 - mine]);
  pthread_mutex_unlock(&mutexes[1 - mine]);
  pthread_cleanup_pop(1);
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    return 2;
  }
  const int signals = strcmp(argv[1], "signals") == 0;
  if (signals || strcmp(argv[1], "stands") == 0) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&mutexes[0], &attributes);
    pthread_mutex_init(&mutexes[1], &attributes);
  }
  if (signals) {
    signal(SIGUSR1, on_signal);
  }
  pthread_t handles[2];
  pthread_barrier_init(&both_hold_one, NULL, 2);
  for (long i = 0; i < 2; ++i) {
    pthread_create(&handles[i], NULL, transfer, (void*)i);
  }
  announce("main");
  while (strcmp(argv[1], "beats") == 0) {
    sleep(1);
  }
  sleep(NAP_S);
  if (strcmp(argv[1], "cancels") == 0) {
    pthread_cancel(handles[0]);
  } else if (signals) {
    pthread_kill(handles[0], SIGUSR1);
  } else {
    pthread_mutex_unlock(&mutexes[0]);
  }
  for (int i = 0; i < 2; ++i) {
    pthread_join(handles[i], NULL);
  }
  return 0;
}
