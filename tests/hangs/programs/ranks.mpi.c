/* Ranks of an MPI program. Each announces itself and then enters what the case wants. usage: ranks KIND */

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "announce.h"

static int rank, size;
static double in[1 << 18], out[1 << 18];

static const char* role(void) {
  static char name[32];
  snprintf(name, sizeof name, "rank%d", rank);
  return name;
}

static void sleep_instead(void) {
  announce(role());
  for (;;) sleep(3600);
}

static void all_reduce(MPI_Comm where) {
  MPI_Allreduce(in, out, 16, MPI_DOUBLE, MPI_SUM, where);
}

/* Rank 1 sleeps instead of coming. */
static void lacks_one(void) {
  if (rank == 1) sleep_instead();
  announce(role());
  all_reduce(MPI_COMM_WORLD);
}

static void lacks_one_stopped(void) {
  announce(role());
  if (rank == 1) raise(SIGSTOP);
  MPI_Barrier(MPI_COMM_WORLD);
}

static void lacks_one_at_work(void) {
  announce(role());
  if (rank == 1)
    for (volatile double x = 1;; x *= 1.0001) {
    }
  MPI_Barrier(MPI_COMM_WORLD);
}

static void lacks_one_at_the_end(void) {
  if (rank == 1) sleep_instead();
  announce(role());
  MPI_Finalize();
}

/* What was begun before is waited for: rank 1 does not send. */
static void message_never_sent(void) {
  MPI_Request requests[2];
  if (rank == 1) sleep_instead();
  announce(role());
  MPI_Irecv(in, 16, MPI_DOUBLE, 1, 5, MPI_COMM_WORLD, &requests[0]);
  MPI_Isend(out, 16, MPI_DOUBLE, 1, 5, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

static void all_receive(void) {
  announce(role());
  MPI_Recv(in, 16, MPI_DOUBLE, (rank + 1) % size, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void all_send(void) {
  announce(role());
  MPI_Ssend(in, 16, MPI_DOUBLE, (rank + 1) % size, 7, MPI_COMM_WORLD);
}

static void other_operation(void) {
  announce(role());
  if (rank == 2)
    MPI_Bcast(in, 16, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  else
    all_reduce(MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
}

/* Two communicators of two; rank 1 sleeps, 0 waits for it, 2 and 3 are in the world's barrier. */
static void half_lacks_one(void) {
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &half);
  MPI_Comm_set_name(half, "half");
  if (rank == 1) sleep_instead();
  announce(role());
  all_reduce(half);
  MPI_Barrier(MPI_COMM_WORLD);
}

/* A communicator of two groups of two; rank 3 sleeps, and everybody else waits for it. */
static void two_groups_lack_one(void) {
  MPI_Comm half, both;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 1, &both);
  if (rank == 3) sleep_instead();
  announce(role());
  MPI_Barrier(both);
}

static void opposite_order(void) {
  MPI_Comm other;
  MPI_Comm_dup(MPI_COMM_WORLD, &other);
  announce(role());
  MPI_Barrier(rank == 0 ? other : MPI_COMM_WORLD);
  MPI_Barrier(rank == 0 ? MPI_COMM_WORLD : other);
}

/* Healthy: nearly all of the time is spent waiting in MPI. */
static void messages_to_and_fro(void) {
  announce(role());
  for (;;) {
    if (rank == 0) MPI_Send(in, 1, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(in, 1, MPI_DOUBLE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(in, 1, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD);
  }
}

/* What was begun before is waited for: a barrier to which rank 1 does not come. */
static void barrier_begun_before(void) {
  MPI_Request request;
  if (rank == 1) sleep_instead();
  announce(role());
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* All broadcast, and mean different roots: each of two waits for the other one. */
static void other_root(void) {
  announce(role());
  MPI_Bcast(in, 16, MPI_DOUBLE, 1 - rank, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
}

/* All reduce to a root of their own: each sends, and nobody takes it. */
static void reduced_elsewhere(void) {
  announce(role());
  MPI_Reduce(in, out, 1 << 18, MPI_DOUBLE, MPI_SUM, 1 - rank, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
}

/* Two broadcast as roots; the third has got its data from one of them, and sleeps. */
static void two_roots(void) {
  if (rank == 2) {
    MPI_Bcast(in, 1 << 18, MPI_DOUBLE, 1, MPI_COMM_WORLD);
    sleep_instead();
  }
  announce(role());
  MPI_Bcast(in, 1 << 18, MPI_DOUBLE, rank, MPI_COMM_WORLD);
}

/* What was begun before is asked for between naps. */
static void ask_for(MPI_Request* request) {
  int done = 0;
  for (;;) {
    MPI_Test(request, &done, MPI_STATUS_IGNORE);
    if (done) break;
    usleep(2000);
  }
}

/* A barrier to which rank 1 does not come. */
static void barrier_asked_for(void) {
  MPI_Request request;
  if (rank == 1) sleep_instead();
  announce(role());
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  ask_for(&request);
}

/* A message that rank 1 does not send. */
static void message_asked_for(void) {
  MPI_Request request;
  if (rank == 1) sleep_instead();
  announce(role());
  MPI_Irecv(in, 16, MPI_DOUBLE, 1, 5, MPI_COMM_WORLD, &request);
  ask_for(&request);
}

/* A message that rank 1 does not send, asked for without a nap, while rank 2 is in a barrier. */
static void message_asked_for_at_once(void) {
  MPI_Request request;
  int done = 0;
  if (rank == 1) sleep_instead();
  announce(role());
  if (rank == 0) {
    MPI_Irecv(in, 16, MPI_DOUBLE, 1, 5, MPI_COMM_WORLD, &request);
    while (!done) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

/* Healthy: who has begun a barrier does something else meanwhile, between naps. */
static void barrier_beside_work(void) {
  MPI_Request request;
  int done = 0;
  if (rank == 1) sleep_instead();
  announce(role());
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (;;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) break;
    if (getppid() == 1) break;
    usleep(2000);
  }
}

/* Healthy: all ranks do the same round by the clock. */
static void round_by_the_clock(void) {
  announce(role());
  for (;;) usleep(20000);
}

static void full_speed(void) {
  announce(role());
  for (;;) {
    all_reduce(MPI_COMM_WORLD);
    MPI_Bcast(in, 16, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  }
}

static const struct {
  const char* name;
  void (*run)(void);
} kinds[] = {
    {"lacks-one", lacks_one},
    {"lacks-one-stopped", lacks_one_stopped},
    {"lacks-one-at-work", lacks_one_at_work},
    {"lacks-one-at-the-end", lacks_one_at_the_end},
    {"message-never-sent", message_never_sent},
    {"all-receive", all_receive},
    {"all-send", all_send},
    {"other-operation", other_operation},
    {"half-lacks-one", half_lacks_one},
    {"two-groups-lack-one", two_groups_lack_one},
    {"opposite-order", opposite_order},
    {"messages-to-and-fro", messages_to_and_fro},
    {"barrier-begun-before", barrier_begun_before},
    {"other-root", other_root},
    {"reduced-elsewhere", reduced_elsewhere},
    {"two-roots", two_roots},
    {"barrier-asked-for", barrier_asked_for},
    {"message-asked-for", message_asked_for},
    {"message-asked-for-at-once", message_asked_for_at_once},
    {"barrier-beside-work", barrier_beside_work},
    {"round-by-the-clock", round_by_the_clock},
    {"full-speed", full_speed},
};

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Barrier(MPI_COMM_WORLD);
  for (size_t i = 0; argc > 1 && i < sizeof kinds / sizeof *kinds; ++i)
    if (strcmp(argv[1], kinds[i].name) == 0) kinds[i].run();
  for (;;) pause();
}
