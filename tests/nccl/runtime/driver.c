// The driver's entry points that NCCL asks for by name. All of them are optional for it but these.
#include <string.h>

#include "stand_in.h"

int nothing_to_do(void) {
  return success;
}

static int error_text(int error, const char** text) {
  (void)error;
  *text = "error of the stand-in";
  return success;
}

static int device_handle(int* handle, int ordinal) {
  *handle = ordinal;
  return success;
}

static int uuid(unsigned char* bytes, int device) {
  memset(bytes, 0, 16);
  bytes[0] = 0xfa;
  bytes[15] = (unsigned char)device;
  return success;
}

static int address_range(void** base, size_t* size, void* pointer) {
  *base = pointer;
  *size = 1 << 20;
  return success;
}

static int granularity(size_t* size) {
  *size = 2 << 20;
  return success;
}

static int create_context(void** context) {
  *context = calloc(1, 64);
  return *context != NULL ? success : out_of_memory;
}

static int get_context(void** context) {
  static char the_context[64];
  *context = the_context;
  return success;
}

static int context_device(int* device) {
  *device = current_device();
  return success;
}

static int pointer_attribute(int* value) {
  *value = 0;
  return success;
}

static int launch(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared_memory, void* stream) {
  (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
  (void)shared_memory;
  return launch_on(stream);
}

// CUlaunchConfig: seven unsigned, padding, the stream
static int launch_ex(const char* config) {
  return launch_on(*(void* const*)(config + 32));
}

const struct entry driver_entries[] = {
    {"cuGetErrorString", error_text},
    {"cuGetErrorName", error_text},
    {"cuDeviceGet", device_handle},
    {"cuDeviceGetAttribute", device_attribute},
    {"cuDeviceGetUuid", uuid},
    {"cuDeviceGetUuid_v2", uuid},
    {"cuMemGetAddressRange", address_range},
    {"cuMemGetAllocationGranularity", granularity},
    {"cuCtxCreate", create_context},
    {"cuCtxDestroy", nothing_to_do},
    {"cuCtxGetCurrent", get_context},
    {"cuCtxSetCurrent", nothing_to_do},
    {"cuCtxGetDevice", context_device},
    {"cuPointerGetAttribute", pointer_attribute},
    {"cuLaunchKernel", launch},
    {"cuLaunchKernelEx", launch_ex},
    {NULL, NULL},
};

static int look_up(const char* name, void** function, int* status) {
  for (const struct entry* each = driver_entries; each->name != NULL; ++each) {
    if (strcmp(each->name, name) == 0) {
      *function = each->function;
      if (status != NULL) *status = 0;
      return success;
    }
  }
  *function = NULL;
  if (status == NULL) return not_found;
  *status = 1;  // cudaDriverEntryPointSymbolNotFound
  return success;
}

static int entry_point(const char* name, void** function, uint64_t flags, int* status) {
  (void)flags;
  return look_up(name, function, status);
}

static int entry_point_by_version(const char* name, void** function, unsigned version, uint64_t flags,
                                  int* status) {
  (void)version, (void)flags;
  return look_up(name, function, status);
}

const struct entry lookup_entries[] = {
    {"cudaGetDriverEntryPoint", entry_point},
    {"cudaGetDriverEntryPointByVersion", entry_point_by_version},
    {NULL, NULL},
};
