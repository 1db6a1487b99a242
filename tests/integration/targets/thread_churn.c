/* Makes threads that end at once, for ever. */
#include <pthread.h>
#include <unistd.h>

static void* breathe(void* unused) {
  (void)unused;
  usleep(200);
  return NULL;
}

int main(void) {
  for (;;) {
    pthread_t threads[8];
    for (int i = 0; i < 8; ++i) {
      if (pthread_create(&threads[i], NULL, breathe, NULL) != 0) {
        return 1;
      }
    }
    for (int i = 0; i < 8; ++i) {
      pthread_join(threads[i], NULL);
    }
  }
}
