/* A parent that is held by its vfork child, which neither ends nor starts another program. */
#include "announce.h"

int main(void) {
  announce("waiter");
  if (vfork() == 0) {
    announce("other");
    pause();
    _exit(0);
  }
  return 0;
}
