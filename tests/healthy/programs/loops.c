// Parallel loops of OpenMP, one after the other, with parts that only one thread does and uneven ones.
#include "announce.h"

int main(void) {
  static double cells[1 << 16];
  for (long round = 0;; ++round) {
#pragma omp parallel for schedule(dynamic, 64) num_threads(3)
    for (int i = 0; i < 1 << 16; ++i) {
      for (int j = 0; j < i % 64; ++j) cells[i] += 1.0 / (1 + j);
    }
#pragma omp parallel num_threads(3)
    {
#pragma omp single
      for (int i = 0; i < 1 << 16; ++i) cells[0] += cells[i];
#pragma omp critical
      cells[1] += cells[0];
    }
    if (round == 20) announce("main");
  }
}
