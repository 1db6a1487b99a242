// Does an exactly known number of futex waits, wake-ups or page faults between a start signal and a "done".
//
//   probe_target <mode> <count> [<file>]
//
// Prints "ready <tid of main> <tid of worker>", does its work after one byte on standard input, prints "done"
// and the numbers that its own system calls returned, and ends when standard input is closed.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int word, other_word;  // never change, so a wait always sleeps
static int worker_tid;
static int to_worker[2], from_worker[2];
static int private_flag = FUTEX_PRIVATE_FLAG;
static int stuck;  // the worker sleeps once more than it is woken

struct totals {
  long waits, timed_out, not_slept, wake_calls, woken;
};
static struct totals of_main, of_worker;

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static long futex(int* address, int operation, int value, const struct timespec* timeout, int* second,
                  int mask) {
  return syscall(SYS_futex, address, operation | private_flag, value, timeout, second, mask);
}

static void get(int fd) {
  char byte;
  if (read(fd, &byte, 1) != 1) _exit(0);
}

static void put(int fd) {
  if (write(fd, "x", 1) != 1) fail("write");
}

// Returns once the kernel says that the worker is inside its futex call, so that a wake-up must find it.
static void await_sleeping_worker(void) {
  char path[64], text[64];
  snprintf(path, sizeof path, "/proc/self/task/%d/syscall", worker_tid);
  int fd = open(path, O_RDONLY);
  if (fd < 0) fail(path);
  for (;;) {
    ssize_t length = pread(fd, text, sizeof text - 1, 0);
    text[length > 0 ? length : 0] = 0;
    if (strtol(text, NULL, 10) == SYS_futex && text[0] != 'r') break;
    sched_yield();
  }
  close(fd);
}

static void wake(int* address, int mask, long expected) {
  long woken = futex(address, FUTEX_WAKE_BITSET, 1, NULL, NULL, mask);
  if (woken != expected) fail("wake");
  of_main.wake_calls++;
  of_main.woken += woken;
}

static void* worker(void* argument) {
  long count = (long)argument;
  worker_tid = gettid();
  put(from_worker[1]);
  get(to_worker[0]);
  for (long i = 0; i < count; i++) {
    if (futex(&word, FUTEX_WAIT_BITSET, 0, NULL, NULL, 1) != 0) fail("wait");
    of_worker.waits++;
    put(from_worker[1]);
  }
  if (stuck) futex(&word, FUTEX_WAIT_BITSET, 0, NULL, NULL, 1);
  get(to_worker[0]);
  return NULL;
}

// Wakes once on `word` with a mask that nobody waits for: a second waker, without an effect.
static void* second_waker(void* argument) {
  (void)argument;
  if (futex(&word, FUTEX_WAKE_BITSET, 1, NULL, NULL, 2) != 0) fail("second waker");
  put(from_worker[1]);
  get(to_worker[0]);
  return NULL;
}

enum { STORM_THREADS = 4, STORM_WORDS = 3 };

// Many wait and wake on the same few words at once; each counts what its own calls returned.
static void* storm(void* argument) {
  long count = (long)argument >> 8;
  unsigned seed = (unsigned)((long)argument & 0xff) + 1;
  static int words[STORM_WORDS];
  struct timespec soon = {.tv_nsec = 100000};
  struct totals own = {0};
  get(to_worker[0]);
  for (long i = 0; i < count; i++) {
    int* address = &words[rand_r(&seed) % STORM_WORDS];
    if (rand_r(&seed) & 1) {
      long woken = futex(address, FUTEX_WAKE, 1 + rand_r(&seed) % 3, NULL, NULL, 0);
      own.wake_calls++;
      own.woken += woken;
    } else if (futex(address, FUTEX_WAIT, 0, &soon, NULL, 0) == 0) {
      own.waits++;
    } else {
      own.waits++;
      own.timed_out++;
    }
  }
  __atomic_fetch_add(&of_main.waits, own.waits, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&of_main.timed_out, own.timed_out, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&of_main.wake_calls, own.wake_calls, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&of_main.woken, own.woken, __ATOMIC_SEQ_CST);
  put(from_worker[1]);
  get(to_worker[0]);
  return NULL;
}

static void start_thread(void* (*function)(void*), long argument) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, function, (void*)argument)) fail("pthread_create");
}

static void touch(char* pages, long count) {
  for (long i = 0; i < count; i++) *(volatile char*)(pages + i * sysconf(_SC_PAGESIZE));
}

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  long count = argc > 2 ? atol(argv[2]) : 0;
  long page = sysconf(_SC_PAGESIZE);
  char* pages = NULL;
  if (pipe(to_worker) || pipe(from_worker)) fail("pipe");
  setvbuf(stdout, NULL, _IOLBF, 0);

  if (!strcmp(mode, "shared")) private_flag = 0;
  stuck = !strcmp(mode, "stuck");
  if (!strcmp(mode, "minor")) {
    pages = mmap(NULL, count * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || madvise(pages, count * page, MADV_NOHUGEPAGE)) fail("mmap");
  } else if (!strcmp(mode, "major")) {
    int fd = open(argv[3], O_RDONLY);
    if (fd < 0) fail(argv[3]);
    pages = mmap(NULL, count * page, PROT_READ, MAP_SHARED, fd, 0);
    // Without read-ahead every page is a fault of its own.
    if (pages == MAP_FAILED || madvise(pages, count * page, MADV_RANDOM)) fail("mmap");
  } else if (!strcmp(mode, "storm")) {
    for (long i = 0; i < STORM_THREADS; i++) start_thread(storm, count << 8 | i);
  } else if (strcmp(mode, "timeout")) {
    start_thread(worker, count);
    get(from_worker[0]);
  }
  printf("ready %d %d\n", gettid(), worker_tid);
  get(0);

  if (pages) {
    touch(pages, count);
  } else if (!strcmp(mode, "storm")) {
    for (int i = 0; i < STORM_THREADS; i++) put(to_worker[1]);
    for (int i = 0; i < STORM_THREADS; i++) get(from_worker[0]);
  } else if (!strcmp(mode, "timeout")) {
    struct timespec soon = {.tv_nsec = 1000000};
    for (long i = 0; i < count; i++)
      if (futex(&word, FUTEX_WAIT, 0, &soon, NULL, 0) != 0) of_main.waits++, of_main.timed_out++;
    for (long i = 0; i < count; i++)
      if (futex(&word, FUTEX_WAIT, 1, NULL, NULL, 0) != 0) of_main.not_slept++;
  } else {
    put(to_worker[1]);
    for (long i = 0; i < count; i++) {
      await_sleeping_worker();
      if (!strcmp(mode, "contended")) {
        start_thread(second_waker, 0);
        get(from_worker[0]);
        wake(&word, 1, 1);
      } else if (!strcmp(mode, "requeue")) {
        if (futex(&word, FUTEX_REQUEUE, 0, (void*)1L, &other_word, 0) != 1) fail("requeue");
        wake(&word, 1, 0);
        wake(&other_word, 1, 1);
      } else {
        wake(&word, 1, 1);
      }
      get(from_worker[0]);
    }
    if (stuck) await_sleeping_worker();
  }
  printf("done %ld %ld %ld %ld %ld\n", of_main.waits + of_worker.waits, of_main.timed_out, of_main.not_slept,
         of_main.wake_calls, of_main.woken);
  get(0);
  _exit(0);
}
