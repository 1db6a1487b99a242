/* Members that hold an object or want one, for C11 and C++20.

   usage: PROGRAM MODE PRIMITIVE
     held    "holder" holds object 0 and sleeps, "waiter" wants it
     ringN   N members, each holds its own object and wants the one of the next
     left    a thread takes object 0 and ends, "waiter" wants it
     seized  as left, but "holder" takes the object over before "waiter" wants it
     forked  "holder" holds object 0 while the process is forked, "waiter" is the child and wants it

   Members of primitives that are shared are processes, each with a mapping of its own of the objects. The
   main thread has no part in it. */
#pragma once

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "announce.h"

enum { MEMBERS = 3, OBJECT_SIZE = 512, LONG = 3600 };

typedef struct {
  const char* name;
  void (*make)(int i);
  void (*hold)(int i);
  void (*want)(int i);
  void (*then)(int i); /* what the holder does before it says so and sleeps */
  int shared;
} Primitive;

typedef struct {
  unsigned char bytes[OBJECT_SIZE] __attribute__((aligned(64)));
} Object;

static Object* objects;
static pthread_t handles[MEMBERS];
static pthread_barrier_t* started;
static const Primitive* primitive;
static int ring; /* members of it; 0: one holds, one wants */
static int memory = -1;

/* Who the thread is, which it says as the last thing before it wants the object. */
static __thread char own_role[24];

/* An object announces itself, too, under its address; NULL where the program cannot know it. */
static void about_to_want(const volatile void* address) {
  if (address) {
    char role[48];
    snprintf(role, sizeof role, "object %#lx", (unsigned long)address);
    announce(role);
  }
  announce(own_role);
}

static inline void be_member(int i) {
  snprintf(own_role, sizeof own_role, "member%d", i);
}

static void sleep_long(void) {
  struct timespec time = {LONG, 0};
  nanosleep(&time, NULL);
}

static Object* map_objects(void) {
  void* found = mmap(NULL, sizeof(Object) * MEMBERS, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (found == MAP_FAILED) {
    _exit(1);
  }
  return (Object*)found;
}

static void* member(void* argument) {
  const int self = (int)(long)argument;
  if (primitive->shared) {
    /* Not where the others see it. */
    Object* const theirs = objects;
    objects = map_objects();
    munmap(theirs, sizeof(Object) * MEMBERS);
  }
  if ((ring || self == 0) && primitive->hold) {
    primitive->hold(self);
  }
  pthread_barrier_wait(started);
  if (ring) {
    be_member(self);
    primitive->want((self + 1) % ring);
  } else if (self == 1) {
    strcpy(own_role, "waiter");
    primitive->want(0);
  } else {
    if (primitive->then) {
      primitive->then(0);
    }
    announce("holder");
    sleep_long();
  }
  return NULL;
}

static void* hold_and_end(void* argument) {
  primitive->hold((int)(long)argument);
  return NULL;
}

static void leave_it_held(void) {
  pthread_t gone;
  pthread_create(&gone, NULL, hold_and_end, NULL);
  pthread_join(gone, NULL);
}

static void* want_it(void* unused) {
  strcpy(own_role, "waiter");
  primitive->want(0);
  return unused;
}

static void* hold_it(void* unused) {
  primitive->hold(0);
  pthread_barrier_wait(started);
  announce("holder");
  sleep_long();
  return unused;
}

static void start_members(int count) {
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(started, &attributes, (unsigned)count + !primitive->shared);
  for (long i = 0; i < count; ++i) {
    if (!primitive->shared) {
      pthread_create(&handles[i], NULL, member, (void*)i);
    } else if (fork() == 0) {
      member((void*)i);
      _exit(0);
    }
  }
  if (!primitive->shared) {
    pthread_barrier_wait(started);
  }
}

static int run(const Primitive* primitives, size_t count, int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  for (size_t i = 0; i < count; ++i) {
    if (strcmp(primitives[i].name, argv[2]) == 0) {
      primitive = &primitives[i];
    }
  }
  if (primitive == NULL) {
    return 3;
  }
  memory = (int)syscall(SYS_memfd_create, "objects", 0);
  if (ftruncate(memory, sizeof(Object) * MEMBERS) != 0) {
    return 1;
  }
  static Object unshared[MEMBERS];
  objects = primitive->shared ? map_objects() : unshared;
  started = (pthread_barrier_t*)mmap(NULL, sizeof *started, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; primitive->make && i < MEMBERS; ++i) {
    primitive->make(i);
  }
  const char* const mode = argv[1];
  pthread_t other;
  if (strcmp(mode, "held") == 0) {
    start_members(2);
  } else if (strncmp(mode, "ring", 4) == 0) {
    ring = atoi(mode + 4);
    start_members(ring);
  } else if (strcmp(mode, "left") == 0) {
    leave_it_held();
    pthread_create(&other, NULL, want_it, NULL);
  } else if (strcmp(mode, "seized") == 0 || strcmp(mode, "forked") == 0) {
    if (strcmp(mode, "seized") == 0) {
      leave_it_held();
    }
    pthread_barrier_init(started, NULL, 2);
    pthread_create(&other, NULL, hold_it, NULL);
    pthread_barrier_wait(started);
    if (strcmp(mode, "seized") == 0) {
      pthread_create(&other, NULL, want_it, NULL);
    } else if (fork() == 0) {
      want_it(NULL);
    }
  } else {
    return 2;
  }
  for (;;) {
    pause();
  }
}
