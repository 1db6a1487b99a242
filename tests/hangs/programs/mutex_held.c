/* A thread keeps a mutex that the main thread wants.
 * usage: mutex_held reads|exits: the holder reads from a pipe that nobody writes to, or ends with it locked
 */
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>

#include "announce.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t held;
static int nobody_writes[2];

static void* hold(void* exits) {
  prctl(PR_SET_NAME, "holder");
  pthread_mutex_lock(&mutex);
  pthread_barrier_wait(&held);
  if (!exits) {
    char byte;
    announce("holder");
    if (read(nobody_writes[0], &byte, 1) < 0) {
      perror("read");
    }
  }
  return NULL;
}

int main(int argc, char** argv) {
  int exits = argc > 1 && strcmp(argv[1], "exits") == 0;
  if (pipe(nobody_writes) != 0) {
    return 1;
  }
  pthread_t holder;
  pthread_barrier_init(&held, NULL, 2);
  pthread_create(&holder, NULL, hold, exits ? &exits : NULL);
  pthread_barrier_wait(&held);
  if (exits) {
    pthread_join(holder, NULL);
  }
  announce("main");
  pthread_mutex_lock(&mutex);
  return 0;
}
