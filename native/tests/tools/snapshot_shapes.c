// What record_snapshots.py records: call chains of the shapes that unwinders have trouble with, each ending
// in stop_here(), where a breakpoint lies. argv[1] says which one.
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SHAPE __attribute__((noinline, noclone, noipa)) static
#define KEPT __asm__ volatile("" ::: "memory")  // what comes before is no tail call

static volatile int kept[64];

// The innermost function needs no frame.
SHAPE void stop_here(void) {
  __asm__ volatile("nop");
}

SHAPE int plain(int depth) {
  volatile int local[8];
  local[depth & 7] = depth;
  if (depth == 0) {
    stop_here();
  } else {
    plain(depth - 1);
  }
  KEPT;
  return local[depth & 7];
}

// An argument that is needed after the call and a variable amount of stack.
SHAPE int with_alloca(int size) {
  volatile char* bytes = alloca((size_t)size);
  memset((void*)bytes, 1, (size_t)size);
  const int result = plain(size % 3);
  KEPT;
  return result + bytes[size - 1];
}

SHAPE int with_alignment(int value) {
  volatile int local[16] __attribute__((aligned(64)));
  local[value & 15] = value;
  const int result = plain(1);
  KEPT;
  return result + local[value & 15];
}

SHAPE int with_both(int size, int a, int b, int c, int d, int e, int f, int g, int h, int on_stack) {
  volatile int local[16] __attribute__((aligned(64)));
  volatile char* bytes = alloca((size_t)size);
  local[size & 15] = a + b + c + d + e + f + g + h;
  bytes[0] = 1;
  const int result = plain(1);
  KEPT;
  return result + local[size & 15] + bytes[0] + on_stack;
}

SHAPE void on_signal(int number) {
  kept[0] = number;
  plain(1);
  KEPT;
}

SHAPE int raises(int value) {
  kept[1] = value;
  // In this very frame, not in the C library.
#ifdef __x86_64__
  __asm__ volatile("ud2");
#else
  __asm__ volatile(".inst 0");
#endif
  KEPT;
  return kept[1];
}

SHAPE void* in_thread(void* argument) {
  plain(2);
  KEPT;
  return argument;
}

int main(int count, char** arguments) {
  const char* name = count > 1 ? arguments[1] : "";
  int result = 0;
  if (strcmp(name, "plain") == 0) {
    result = plain(3);
  } else if (strcmp(name, "alloca") == 0) {
    result = with_alloca(100 + count);
  } else if (strcmp(name, "aligned") == 0) {
    result = with_alignment(count);
  } else if (strcmp(name, "aligned_alloca") == 0) {
    result = with_both(100 + count, 1, 2, 3, 4, 5, 6, 7, 8, 9);
  } else if (strcmp(name, "signal") == 0) {
    signal(SIGILL, on_signal);
    result = raises(count);
  } else if (strcmp(name, "thread") == 0) {
    pthread_t thread;
    pthread_create(&thread, NULL, in_thread, NULL);
    pthread_join(thread, NULL);
  } else if (strcmp(name, "clock") == 0) {
    struct timespec now;
    result = clock_gettime(CLOCK_MONOTONIC, &now);
    KEPT;
  } else if (strcmp(name, "stub") == 0) {
    result = rand();
    KEPT;
  }
  KEPT;
  return result;
}
