// Memory of the device and pinned memory of the host: both are pages of the process.
#include <string.h>
#include <sys/mman.h>

#include "stand_in.h"

void* zeroed_pages(size_t size) {
  size = size == 0 ? 4096 : (size + 4095) & ~(size_t)4095;
  void* pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? NULL : pages;
}

// Shared by all that allocate: further arguments (flags, stream, pool) are of no use here.
static int allocate(void** pages, size_t size) {
  *pages = zeroed_pages(size);
  return *pages != NULL ? success : out_of_memory;
}
EXPORT int stand_in_allocate(void** pages, size_t size) {
  return allocate(pages, size);
}

static int device_pointer(void** device, void* host) {
  *device = host;
  return success;
}

static int copy(void* to, const void* from, size_t size) {
  memcpy(to, from, size);
  return success;
}

static int set(void* at, int value, size_t size) {
  memset(at, value, size);
  return success;
}

static int create_pool(void** pool) {
  *pool = calloc(1, 64);
  return *pool != NULL ? success : out_of_memory;
}

static int default_pool(void** pool) {
  static char the_pool[64];
  *pool = the_pool;
  return success;
}

// cudaIpcMemHandle_t: 64 bytes
static int export_memory(char* handle, void* pages) {
  memset(handle, 0, 64);
  memcpy(handle, &pages, sizeof pages);
  return success;
}

static int import_memory(void) {
  return not_supported;
}

// cudaPointerAttributes: type (2: of the device), device, devicePointer, hostPointer
struct pointer_attributes {
  int type;
  int device;
  const void* device_pointer;
  const void* host_pointer;
};
static int pointer_attributes(struct pointer_attributes* attributes, const void* pointer) {
  *attributes = (struct pointer_attributes){2, current_device(), pointer, NULL};
  return success;
}

const struct entry memory_entries[] = {
    {"cudaMalloc", allocate},
    {"cudaMallocAsync", allocate},
    {"cudaMallocFromPoolAsync", allocate},
    {"cudaMallocHost", allocate},
    {"cudaHostAlloc", allocate},
    {"cudaFree", nothing_to_do},
    {"cudaFreeAsync", nothing_to_do},
    {"cudaFreeHost", nothing_to_do},
    {"cudaHostRegister", nothing_to_do},
    {"cudaHostUnregister", nothing_to_do},
    {"cudaHostGetDevicePointer", device_pointer},
    {"cudaMemcpy", copy},
    {"cudaMemcpyAsync", copy},
    {"cudaMemcpyBatchAsync", import_memory},
    {"cudaMemset", set},
    {"cudaMemsetAsync", set},
    {"cudaMemPoolCreate", create_pool},
    {"cudaMemPoolDestroy", nothing_to_do},
    {"cudaMemPoolSetAttribute", nothing_to_do},
    {"cudaMemPoolSetAccess", nothing_to_do},
    {"cudaMemPoolTrimTo", nothing_to_do},
    {"cudaDeviceGetDefaultMemPool", default_pool},
    {"cudaDeviceGetMemPool", default_pool},
    {"cudaIpcGetMemHandle", export_memory},
    {"cudaIpcOpenMemHandle", import_memory},
    {"cudaIpcCloseMemHandle", nothing_to_do},
    {"cudaPointerGetAttributes", pointer_attributes},
    {NULL, NULL},
};
