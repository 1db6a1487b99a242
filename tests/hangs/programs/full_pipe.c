/* A process writes to a full pipe; the one at the other end does not read. */
#include <signal.h>
#include <sys/prctl.h>

#include "announce.h"

int main(void) {
  int ends[2];
  if (pipe(ends) != 0) {
    return 1;
  }
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[1]);
    announce("reader");
    for (;;) {
      pause();
    }
  }
  close(ends[0]);
  announce("writer");
  static const char block[4096];
  while (write(ends[1], block, sizeof block) > 0) {
  }
  return 0;
}
