// Streams and events. A launched kernel never ends: who waits for its stream sleeps for ever.
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stand_in.h"

struct work {  // a stream, or what an event has recorded
  _Atomic uint32_t busy;
};

static struct work default_stream;

// 0, 1 and 2 name the default streams.
static struct work* stream_of(void* handle) {
  return (uintptr_t)handle <= 2 ? &default_stream : (struct work*)handle;
}

static int state_of(struct work* work) {
  return atomic_load(&work->busy) ? not_ready : success;
}

static int wait_for(struct work* work) {
  while (atomic_load(&work->busy)) {
    syscall(SYS_futex, &work->busy, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
  }
  return success;
}

static int create(void** handle) {
  *handle = calloc(1, 64);
  return *handle != NULL ? success : out_of_memory;
}

int launch_on(void* stream) {
  if (getenv("NCCL_BENCH_COMPLETES") == NULL) atomic_store(&stream_of(stream)->busy, 1);
  return success;
}

// The names of the driver: what the program itself calls, and what its stack then shows.
EXPORT int cuStreamSynchronize(void* stream) {
  return wait_for(stream_of(stream));
}
EXPORT int cuEventSynchronize(void* event) {
  return wait_for(event);
}
EXPORT int stand_in_create_stream(void** stream) {
  return create(stream);
}

static int stream_query(void* stream) {
  return state_of(stream_of(stream));
}
static int event_query(void* event) {
  return state_of(event);
}

static int event_record(void* event, void* stream) {
  atomic_store(&((struct work*)event)->busy, atomic_load(&stream_of(stream)->busy));
  return success;
}

static int stream_wait_event(void* stream, void* event) {
  if (atomic_load(&((struct work*)event)->busy)) atomic_store(&stream_of(stream)->busy, 1);
  return success;
}

static int event_elapsed_time(float* milliseconds) {
  *milliseconds = 0;
  return success;
}

// cudaLaunchKernel takes the two dim3 in two registers each; the stream is the last argument, on the stack.
static int launch_kernel(const void* function, uint64_t grid_xy, uint64_t grid_z, uint64_t block_xy,
                         uint64_t block_z, void** arguments, size_t shared_memory, void* stream) {
  (void)function, (void)grid_xy, (void)grid_z, (void)block_xy, (void)block_z, (void)arguments,
      (void)shared_memory;
  return launch_on(stream);
}

// cudaLaunchConfig_t: two dim3 and the size of shared memory (32 bytes with padding), then the stream.
static int launch_kernel_ex(const char* config) {
  return launch_on(*(void* const*)(config + 32));
}

static int no_priorities(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return success;
}

static int not_capturing(void* stream, int* status, uint64_t* id, void** graph, void** dependencies,
                         size_t* count) {
  (void)stream;
  if (status != NULL) *status = 0;
  if (id != NULL) *id = 0;
  if (graph != NULL) *graph = NULL;
  if (dependencies != NULL) *dependencies = NULL;
  if (count != NULL) *count = 0;
  return success;
}

static int is_capturing(void* stream, int* status) {
  (void)stream;
  *status = 0;
  return success;
}

static int stream_id(void* stream, uint64_t* id) {
  *id = (uint64_t)(uintptr_t)stream;
  return success;
}

static int refuse(void) {
  return not_supported;
}

const struct entry stream_entries[] = {
    {"cudaStreamCreate", create},
    {"cudaStreamCreateWithFlags", create},
    {"cudaStreamCreateWithPriority", create},
    {"cudaStreamDestroy", nothing_to_do},
    {"cudaStreamSynchronize", cuStreamSynchronize},
    {"cudaStreamQuery", stream_query},
    {"cudaStreamWaitEvent", stream_wait_event},
    {"cudaStreamGetId", stream_id},
    {"cudaStreamIsCapturing", is_capturing},
    {"cudaStreamGetCaptureInfo", not_capturing},
    {"cudaStreamGetCaptureInfo_v2", not_capturing},
    {"cudaStreamGetCaptureInfo_v3", not_capturing},
    {"cudaStreamUpdateCaptureDependencies", refuse},
    {"cudaStreamUpdateCaptureDependencies_v2", refuse},
    {"cudaThreadExchangeStreamCaptureMode", nothing_to_do},
    {"cudaDeviceGetStreamPriorityRange", no_priorities},
    {"cudaEventCreate", create},
    {"cudaEventCreateWithFlags", create},
    {"cudaEventDestroy", nothing_to_do},
    {"cudaEventRecord", event_record},
    {"cudaEventRecordWithFlags", event_record},
    {"cudaEventSynchronize", cuEventSynchronize},
    {"cudaEventQuery", event_query},
    {"cudaEventElapsedTime", event_elapsed_time},
    {"cudaLaunchKernel", launch_kernel},
    {"cudaLaunchKernelExC", launch_kernel_ex},
    {"cudaLaunchHostFunc", nothing_to_do},
    {"cudaUserObjectCreate", refuse},
    {"cudaGraphRetainUserObject", refuse},
    {"cudaGraphAddEventRecordNode", refuse},
    {"cudaGraphAddDependencies", refuse},
    {"cudaGraphAddDependencies_v2", refuse},
    {NULL, NULL},
};
