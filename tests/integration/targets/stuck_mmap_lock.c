/* Gets its own mmap lock held for ever, on a file system that is frozen when SIGUSR1 comes.
 *
 * One thread writes to a page of a shared mapping and waits for the thaw, with the lock of that VMA held for
 * reading. A second one unmaps it: it takes the mmap lock for writing and waits for the first one.
 * usage: stuck_mmap_lock FILE; prints "ready", then waits for SIGUSR1 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIZE = 8 << 20, PAGE = 4096 };
static volatile char* mapped;
static char own_stat[64];
static int fault_tid_ready[2];

static void* write_page(void* unused) {
  (void)unused;
  prctl(PR_SET_NAME, "writer");
  pid_t tid = (pid_t)syscall(SYS_gettid);
  if (write(fault_tid_ready[1], &tid, sizeof tid) != sizeof tid) {
    return NULL;
  }
  mapped[3 * PAGE] = 7;
  return NULL;
}

/* Until the writer is in its uninterruptible sleep: only then is the VMA locked. */
static void await_uninterruptible(pid_t tid) {
  snprintf(own_stat, sizeof own_stat, "/proc/self/task/%d/stat", (int)tid);
  for (;;) {
    char line[512], state = '?';
    FILE* file = fopen(own_stat, "r");
    if (file != NULL) {
      if (fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "%*d (%*[^)]) %c", &state);
      }
      fclose(file);
    }
    if (state == 'D') {
      return;
    }
    usleep(1000);
  }
}

static void* unmap(void* unused) {
  (void)unused;
  prctl(PR_SET_NAME, "unmapper");
  munmap((void*)mapped, SIZE);
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 2 || pipe(fault_tid_ready) != 0) {
    return 2;
  }
  int fd = open(argv[1], O_RDWR);
  mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || mapped == MAP_FAILED) {
    perror(argv[1]);
    return 1;
  }
  char before = mapped[3 * PAGE]; /* there, but not yet writable */
  (void)before;
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &wanted, NULL);
  puts("ready");
  fflush(stdout);
  int signal_number;
  sigwait(&wanted, &signal_number);
  pthread_t writer, unmapper;
  pid_t tid;
  pthread_create(&writer, NULL, write_page, NULL);
  if (read(fault_tid_ready[0], &tid, sizeof tid) != sizeof tid) {
    return 1;
  }
  /* Made before the lock is gone: making a thread takes it too. */
  await_uninterruptible(tid);
  pthread_create(&unmapper, NULL, unmap, NULL);
  pthread_join(writer, NULL);
  pthread_join(unmapper, NULL);
  return 0;
}
