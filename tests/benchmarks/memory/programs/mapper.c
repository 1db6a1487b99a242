/* Maps and unmaps a little again and again, and says how long that took.
 * usage: mapper FILE; for each line "go SECONDS" on stdin prints "COUNT P50 P999 MAX" in nanoseconds. FILE is
 * mapped and touched as a whole first: page tables that take a while to walk. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1 << 22, PAGE = 4096 };
static unsigned taken[MOST];

static long long now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static int by_size(const void* a, const void* b) {
  const unsigned x = *(const unsigned*)a, y = *(const unsigned*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  struct stat about;
  const int file = argc == 2 ? open(argv[1], O_RDONLY) : -1;
  if (file < 0 || fstat(file, &about) != 0) {
    return 2;
  }
  const volatile char* view = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, file, 0);
  if (view == MAP_FAILED) {
    return 2;
  }
  for (off_t at = 0; at < about.st_size; at += PAGE) {
    (void)view[at];
  }
  puts("ready");
  fflush(stdout);
  double seconds = 0;
  while (scanf(" go %lf", &seconds) == 1) {
    const long long end = now() + (long long)(seconds * 1e9);
    size_t count = 0;
    for (long long before = now(); before < end && count < MOST; before = now()) {
      munmap(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), PAGE);
      taken[count++] = (unsigned)(now() - before);
      usleep(20);
    }
    qsort(taken, count, sizeof taken[0], by_size);
    printf("%zu %u %u %u\n", count, taken[count / 2], taken[count - 1 - count / 1000], taken[count - 1]);
    fflush(stdout);
  }
  return 0;
}
