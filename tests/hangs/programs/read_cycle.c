/* Two processes each read from the other one. usage: read_cycle pipe|socket */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "announce.h"

static void receive(const char* role, int fd) {
  char byte;
  announce(role);
  if (read(fd, &byte, 1) < 0) {
    perror("read");
  }
}

int main(int argc, char** argv) {
  int ours[2], theirs[2];
  int use_socket = argc > 1 && strcmp(argv[1], "socket") == 0;
  if (use_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ours) : (pipe(ours) || pipe(theirs))) {
    return 1;
  }
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (use_socket) {
      close(ours[0]);
      receive("child", ours[1]);
    } else { /* reads what the parent would write to `theirs` */
      close(ours[0]);
      close(theirs[1]);
      receive("child", theirs[0]);
    }
    _exit(0);
  }
  if (use_socket) {
    close(ours[1]);
    receive("parent", ours[0]);
  } else {
    close(ours[1]);
    close(theirs[0]);
    receive("parent", ours[0]);
  }
  return 0;
}
