/* A mutex in a file that everybody may map. usage: shared_lock_target PART FILE
 * make: makes the mutex, takes it, says "ready" and sleeps. wait: says "ready" and waits for it. map: maps
 * the file, says "ready" and sleeps. see: does not even map it. All end with their standard input. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t* mutex;

static void* take(void* unused) {
  (void)unused;
  pthread_mutex_lock(mutex);
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  const char* part = argv[1];
  if (strcmp(part, "see") != 0) {
    int fd = open(argv[2], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096) != 0) {
      return 1;
    }
    mutex = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mutex == MAP_FAILED) {
      return 1;
    }
  }
  pthread_t waiter;
  if (strcmp(part, "make") == 0) {
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(mutex, &shared);
    pthread_mutex_lock(mutex);
  } else if (strcmp(part, "wait") == 0 && pthread_create(&waiter, NULL, take, NULL) != 0) {
    return 1;
  }
  puts("ready");
  fflush(stdout);
  char end;
  return read(0, &end, 1) == 0 ? 0 : 1;
}
