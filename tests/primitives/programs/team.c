/* A team of OpenMP of which one does not come on.

   usage: team held PRIMITIVE
     barrier     the waiters are at an explicit barrier, the holder has not come to it
     end         the waiters are at the end of the parallel region
     critical    the waiter wants the critical section that the holder is in
     lock        the waiter wants a lock (omp_set_lock) that the holder has
     ordered     the waiter's turn in an ordered loop comes after the holder's

   "holder" sleeps, "waiter" waits for it. */
#include <omp.h>
#include <string.h>
#include <time.h>

#include "announce.h"

static omp_lock_t lock;

static void sleep_long(void) {
  struct timespec time = {3600, 0};
  announce("holder");
  nanosleep(&time, NULL);
}

static void at_barrier(void) {
#pragma omp parallel
  {
    if (omp_get_thread_num() == 1) {
      sleep_long();
    }
    if (omp_get_thread_num() == 0) {
      announce("waiter");
    }
#pragma omp barrier
  }
}

static void at_end(void) {
#pragma omp parallel
  {
    if (omp_get_thread_num() == 1) {
      sleep_long();
    }
    if (omp_get_thread_num() == 0) {
      announce("waiter");
    }
  }
}

static void in_critical(void) {
  int inside = 0;
#pragma omp parallel shared(inside)
  {
    if (omp_get_thread_num() == 1) {
#pragma omp critical
      {
#pragma omp atomic write
        inside = 1;
        sleep_long();
      }
    } else if (omp_get_thread_num() == 0) {
      int entered = 0;
      while (!entered) {
#pragma omp atomic read
        entered = inside;
      }
      announce("waiter");
#pragma omp critical
      { announce("never"); }
    }
  }
}

static void at_lock(void) {
  int taken = 0;
  omp_init_lock(&lock);
#pragma omp parallel shared(taken)
  {
    if (omp_get_thread_num() == 1) {
      omp_set_lock(&lock);
#pragma omp atomic write
      taken = 1;
      sleep_long();
    } else if (omp_get_thread_num() == 0) {
      int other = 0;
      while (!other) {
#pragma omp atomic read
        other = taken;
      }
      announce("waiter");
      omp_set_lock(&lock);
    }
  }
}

static void in_order(void) {
#pragma omp parallel for ordered schedule(static, 1)
  for (int i = 0; i < omp_get_num_threads(); ++i) {
    if (i == 1) {
      announce("waiter");
    }
#pragma omp ordered
    {
      if (i == 0) {
        sleep_long();
      }
    }
  }
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } primitives[] = {{"barrier", at_barrier},
                    {"end", at_end},
                    {"critical", in_critical},
                    {"lock", at_lock},
                    {"ordered", in_order}};
  for (size_t i = 0; argc == 3 && i < sizeof primitives / sizeof *primitives; ++i) {
    if (strcmp(primitives[i].name, argv[2]) == 0) {
      primitives[i].run();
      return 0;
    }
  }
  return 2;
}
