/* Executes itself again and again, each time with a second thread for a moment. */
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

static void* breathe(void* unused) {
  (void)unused;
  usleep(500);
  return NULL;
}

int main(int argc, char** argv) {
  (void)argc;
  pthread_t thread;
  pthread_create(&thread, NULL, breathe, NULL);
  pthread_join(thread, NULL);
  execv(argv[0], argv);
  perror("execv");
  return 1;
}
