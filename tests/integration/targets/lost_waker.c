// Two threads: "producer" posts a semaphore, which records no owner, a hundred times a second, and "consumer"
// waits for it. On a byte on standard input the producer waits for a file lock (argv[1]) that somebody else
// has, and the consumer in vain. Prints "ready", and "hanging" just before the last wait.

#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

static sem_t items;
static const char* lock_path;

static void* produce(void* unused) {
  pthread_setname_np(pthread_self(), "producer");
  struct pollfd order = {.fd = 0, .events = POLLIN};
  while (poll(&order, 1, 10) == 0) sem_post(&items);
  const int lock = open(lock_path, O_RDWR);
  puts("hanging");
  fflush(stdout);
  flock(lock, LOCK_EX);
  return unused;
}

static void* consume(void* unused) {
  pthread_setname_np(pthread_self(), "consumer");
  for (;;) sem_wait(&items);
  return unused;
}

int main(int count, char** arguments) {
  if (count < 2) return 2;
  lock_path = arguments[1];
  sem_init(&items, 0, 0);
  pthread_t producer, consumer;
  pthread_create(&consumer, NULL, consume, NULL);
  pthread_create(&producer, NULL, produce, NULL);
  puts("ready");
  fflush(stdout);
  pthread_join(producer, NULL);
  return 0;
}
