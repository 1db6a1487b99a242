// Does one kind of work again and again, and says for each of many short pieces what one operation cost.
//
//   load pingpong | wake | lock | fault | syscall
//
// Prints "ready <pid>". A line on standard input with a number makes it do that many pieces; it prints for
// each the CPU time of its process in nanoseconds per operation, the wall time of one, which a busy machine
// stretches, and how many operations that were, then "done".
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int words[2];
static volatile long rounds;
static long operations;  // of the last piece
static int go[2], gone[2];

static double cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * 1e9 + now.tv_nsec;
}

static void wait_while(int* word, int value) {
  while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value)
    syscall(SYS_futex, word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void set(int* word, int value) {
  __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}

static void* partner(void* unused) {
  char byte;
  while (read(go[0], &byte, 1) == 1) {
    for (long i = 0; i < rounds; i++) {
      wait_while(&words[0], 0);
      words[0] = 0;
      set(&words[1], 1);
    }
    if (write(gone[1], "x", 1) != 1) break;
  }
  return unused;
}

// Four calls of futex a round: each thread waits once and wakes once.
static double pingpong(void) {
  char byte;
  rounds = 5000;
  double before = cpu_ns();
  if (write(go[1], "x", 1) != 1) exit(1);
  for (long i = 0; i < rounds; i++) {
    set(&words[0], 1);
    wait_while(&words[1], 0);
    words[1] = 0;
  }
  if (read(gone[0], &byte, 1) != 1) exit(1);
  operations = 4 * rounds;
  return (cpu_ns() - before) / operations;
}

static double wake(void) {
  enum { CALLS = 50000 };
  double before = cpu_ns();
  for (int i = 0; i < CALLS; i++)
    syscall(SYS_futex, &words[0], FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
  operations = CALLS;
  return (cpu_ns() - before) / operations;
}

static double fault(void) {
  enum { PAGES = 8192 };
  long page = sysconf(_SC_PAGESIZE);
  char* memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || madvise(memory, PAGES * page, MADV_NOHUGEPAGE)) exit(1);
  double before = cpu_ns();
  for (long i = 0; i < PAGES; i++) *(volatile char*)(memory + i * page) = 1;
  double after = cpu_ns();
  munmap(memory, PAGES * page);
  operations = PAGES;
  return (after - before) / operations;
}

static double plain_syscall(void) {
  enum { CALLS = 100000 };
  double before = cpu_ns();
  for (int i = 0; i < CALLS; i++) syscall(SYS_getppid);
  operations = CALLS;
  return (cpu_ns() - before) / operations;
}

static double lock(void) {
  enum { CALLS = 20000 };
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  double before = cpu_ns();
  for (int i = 0; i < CALLS; i++) {
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
  }
  operations = 2 * CALLS;
  return (cpu_ns() - before) / operations;
}

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  double (*work)(void) = !strcmp(mode, "pingpong")  ? pingpong
                         : !strcmp(mode, "wake")    ? wake
                         : !strcmp(mode, "lock")    ? lock
                         : !strcmp(mode, "fault")   ? fault
                         : !strcmp(mode, "syscall") ? plain_syscall
                                                    : NULL;
  if (!work || pipe(go) || pipe(gone)) return 2;
  if (work == pingpong) {
    // On one CPU, so that a call's cost is not that of waking another CPU.
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof cpus, &cpus);
    for (int cpu = CPU_SETSIZE - 1, kept = 0; cpu >= 0; cpu--)
      if (CPU_ISSET(cpu, &cpus) && kept++) CPU_CLR(cpu, &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    pthread_t thread;
    if (pthread_create(&thread, NULL, partner, NULL)) return 1;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("ready %d\n", getpid());
  int pieces;
  while (scanf("%d", &pieces) == 1) {
    for (int i = 0; i < pieces; i++) {
      struct timespec began, ended;
      clock_gettime(CLOCK_MONOTONIC, &began);
      double cost = work();
      clock_gettime(CLOCK_MONOTONIC, &ended);
      double wall = (ended.tv_sec - began.tv_sec) * 1e9 + (ended.tv_nsec - began.tv_nsec);
      printf("%.1f %.1f %ld\n", cost, wall / operations, operations);
    }
    printf("done\n");
  }
  return 0;
}
