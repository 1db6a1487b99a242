// A CUDA runtime and driver without a device, for the real libnccl.so.2: enough of both for NCCL to set up
// communicators, launch collectives, and hang in them as it does on a machine with GPUs whose kernels wait
// for each other. Kernels do nothing; a stream that got one is busy for ever, unless NCCL_BENCH_COMPLETES is
// set.
//
// NCCL links the CUDA runtime statically, so its entry points inside the library are overwritten (patch.c),
// and asks the runtime for those of the driver by name (driver.c).
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

// cudaError_t, of driver_types.h
enum {
  success = 0,
  out_of_memory = 2,
  invalid_value = 1,
  not_found = 500,
  not_ready = 600,
  not_supported = 801
};

struct entry {
  const char* name;
  void* function;
};

// Each ends with a null name. What is not listed is left as it is, and fails for want of a driver.
extern const struct entry stream_entries[];  // streams.c
extern const struct entry memory_entries[];  // memory.c
extern const struct entry device_entries[];  // devices.c
extern const struct entry
    driver_entries[];  // driver.c: by the names that NCCL asks cudaGetDriverEntryPoint for
extern const struct entry lookup_entries[];  // driver.c

int nothing_to_do(void);  // driver.c
int current_device(void);
int launch_on(void* stream);  // streams.c
int device_attribute(int* value, int attribute, int device);
void* zeroed_pages(size_t size);  // memory.c

static inline int number_of(const char* variable, int otherwise) {
  const char* value = getenv(variable);
  return value != NULL ? atoi(value) : otherwise;
}
