/* A thread holds a mutex while the main thread forks: in the child nobody will ever unlock it. */
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "announce.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t held;

static void* hold(void* unused) {
  (void)unused;
  pthread_mutex_lock(&mutex);
  pthread_barrier_wait(&held);
  for (;;) {
    pause();
  }
  return NULL;
}

int main(void) {
  pthread_t holder;
  pthread_barrier_init(&held, NULL, 2);
  pthread_create(&holder, NULL, hold, NULL);
  pthread_barrier_wait(&held);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    announce("child");
    pthread_mutex_lock(&mutex);
    _exit(0);
  }
  announce("parent");
  waitpid(child, NULL, 0);
  return 0;
}
