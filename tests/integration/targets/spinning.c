// Three threads on the CPU: one spins on a word, one yields while it waits, one alternates between two
// functions.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int never;

__attribute__((noinline)) static void spin_on_word(void) {
  while (!never) continue;
}

__attribute__((noinline)) static void yield_until(void) {
  while (!never) sched_yield();
}

__attribute__((noinline)) static double grow(double value) {
  for (int i = 0; i < 200000; ++i) value = value * 1.0001 + i;
  return value;
}

__attribute__((noinline)) static double shrink(double value) {
  for (int i = 0; i < 200000; ++i) value = value * 0.9999 - i;
  return value;
}

__attribute__((noinline)) static void compute(void) {
  for (volatile double value = 1; !never;) {
    value = grow(value);
    value = shrink(value);
  }
}

static void* run(void* work) {
  ((void (*)(void))work)();
  return NULL;
}

int main(void) {
  void (*works[])(void) = {spin_on_word, yield_until, compute};
  const char* names[] = {"spin", "yield", "compute"};
  for (int i = 0; i < 3; ++i) {
    pthread_t thread;
    pthread_create(&thread, NULL, run, (void*)works[i]);
    pthread_setname_np(thread, names[i]);
  }
  puts("ready");
  fflush(stdout);
  pause();
  return 0;
}
