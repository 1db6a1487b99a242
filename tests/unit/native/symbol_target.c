/* A library whose exported function ends up, through a local one, in a wait; and a program that loads it.
 *   cc -shared -fPIC -DLIBRARY        the library
 *   cc -ldl                           the program: symbol_target LIBRARY
 * The program prints "ready" and then waits until its standard input ends. */
#include <stdio.h>
#include <unistd.h>

#ifdef LIBRARY

#define STAYS __attribute__((noinline, noclone))

static STAYS long local_wait(int fd) {
  char byte;
  long got = read(fd, &byte, 1);
  __asm__ volatile("" ::: "memory");
  return got;
}

/* Not by its first instruction: a call through the PLT or GOT would be named for it. */
STAYS long exported_wait(int fd) {
  long got = local_wait(fd);
  __asm__ volatile("" ::: "memory");
  return got + 1;
}

#else

#include <dlfcn.h>

int main(int count, char** arguments) {
  void* library = dlopen(arguments[count - 1], RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  long (*wait)(int) = (long (*)(int))dlsym(library, "exported_wait");
  puts("ready");
  fflush(stdout);
  return (int)wait(0);
}

#endif
