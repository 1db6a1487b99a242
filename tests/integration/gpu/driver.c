// A stand-in for libcuda.so.1: its calls wait for a GPU that is never done, in functions that have no names
// once the library is stripped, as those of the real one have none. WAY says how: "spin", "yield" or "block".
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NAMELESS static __attribute__((noinline, used))

static volatile int done;

NAMELESS void spin(void) {
  struct timespec now;
  while (!done) clock_gettime(CLOCK_MONOTONIC_RAW, &now);
}

NAMELESS void yield(void) {
  while (!done) sched_yield();
}

NAMELESS void block(void) {
  while (!done) poll(NULL, 0, -1);
}

NAMELESS void wait_for_device(void) {
  const char* way = getenv("WAY");
  if (way != NULL && strcmp(way, "spin") == 0) spin();
  if (way != NULL && strcmp(way, "yield") == 0) yield();
  block();
}

// Behind a lock of the driver: who comes second waits for who came first.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

NAMELESS void locked_wait(void) {
  pthread_mutex_lock(&lock);
  wait_for_device();
  pthread_mutex_unlock(&lock);
}

#define CALL(name, waits)  \
  int name(void) {         \
    waits();               \
    return done ? 0 : 999; \
  }

CALL(cuStreamSynchronize, wait_for_device)
CALL(cuEventSynchronize, wait_for_device)
CALL(cuCtxSynchronize, wait_for_device)
CALL(cuMemcpyDtoH_v2, wait_for_device)
CALL(cuMemFree_v2, locked_wait)
CALL(cuMemAlloc_v2, locked_wait)
CALL(cuLaunchKernel, wait_for_device)
CALL(cuGraphLaunch, wait_for_device)
