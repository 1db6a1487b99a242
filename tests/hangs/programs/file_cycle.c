/* Two processes each have a file locked that the other one wants, beside one that may let them go on.
   usage: file_cycle FOLDER alone|watched|timed|alarmed|shared: there is nobody; a third process naps, and
   kills one of them then; one of them has a timer, or an alarm, whose signal ends it; a third one has the
   open file of one of them, and unlocks it after a nap. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "announce.h"

enum { NAP_S = 45 };

static int own[2], wanted[2]; /* by process; each opens them for itself */

static void open_file(const char* folder, const char* name, int number) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  own[number] = open(path, O_RDWR | O_CREAT, 0600);
  wanted[1 - number] = open(path, O_RDWR);
}

static void set_timer(void) {
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
  struct itimerspec when = {.it_value = {.tv_sec = NAP_S}};
  timer_t timer;
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &when, NULL)) {
    perror("timer");
    _exit(1);
  }
}

static pid_t start(const char* role, int number, const char* how, pthread_barrier_t* both_hold_one) {
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(own[1 - number]);
    close(wanted[1 - number]);
    if (strcmp(how, "timed") == 0) {
      set_timer();
    } else if (strcmp(how, "alarmed") == 0) {
      alarm(NAP_S);
    }
    flock(own[number], LOCK_EX);
    pthread_barrier_wait(both_hold_one);
    announce(role);
    flock(wanted[number], LOCK_EX);
    _exit(0);
  }
  return child;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  const char* how = argv[2];
  const int watches = strcmp(how, "watched") == 0;
  const int shares = strcmp(how, "shared") == 0;
  pthread_barrier_t* barrier =
      mmap(NULL, sizeof *barrier, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(barrier, &attributes, 2);
  open_file(argv[1], "debit", 0);
  open_file(argv[1], "credit", 1);
  const pid_t first = start("debit", 0, how, barrier);
  start("credit", 1, "", barrier);
  if (!shares) {
    close(own[0]);
  }
  close(own[1]);
  close(wanted[0]);
  close(wanted[1]);
  announce("main");
  if (watches || shares) {
    sleep(NAP_S);
  }
  if (shares) {
    flock(own[0], LOCK_UN);
  } else if (watches) {
    kill(first, SIGKILL);
  }
  while (wait(NULL) > 0) {
  }
  return 0;
}
