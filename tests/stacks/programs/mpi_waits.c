// MPI ranks of which all but the last wait in a barrier for ever, and a thread of each that sleeps.
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void* sleep_for_ever(void* nothing) {
  for (;;) pause();
  return nothing;
}

int main(int argc, char** argv) {
  int provided, rank, size;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  pthread_t thread;
  pthread_create(&thread, NULL, sleep_for_ever, NULL);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    printf("ready\n");
    fflush(stdout);
  }
  if (rank == size - 1) {
    for (;;) pause();
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}
