// Eight devices of compute capability 9.0, each on a PCI bus of its own, none of which reaches another.
#include <stdio.h>
#include <string.h>

#include "stand_in.h"

static _Thread_local int device_of_thread;

int current_device(void) {
  return device_of_thread;
}

static int set_device(int device) {
  device_of_thread = device;
  return success;
}
EXPORT int stand_in_set_device(int device) {
  return set_device(device);
}

static int get_device(int* device) {
  *device = device_of_thread;
  return success;
}

static int count_devices(int* count) {
  *count = number_of("NCCL_BENCH_DEVICES", 8);
  return success;
}

static int version(int* number) {
  *number = number_of("NCCL_BENCH_CUDA", 12090);
  return success;
}

// cudaDeviceAttr and CUdevice_attribute number these alike.
int device_attribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 1:
      *value = 1024;
      break;  // threads per block
    case 8:
      *value = 49152;
      break;  // shared memory per block
    case 10:
      *value = 32;
      break;  // warp size
    case 13:
      *value = 1980000;
      break;  // clock rate
    case 16:
      *value = 132;
      break;  // multiprocessors
    case 33:
      *value = device + 1;
      break;  // PCI bus
    case 41:
      *value = 1;
      break;  // unified addressing
    case 75:
      *value = 9;
      break;  // compute capability, major
    case 81:
      *value = 233472;
      break;  // shared memory per multiprocessor
    case 97:
      *value = 232448;
      break;  // shared memory per block that can be opted into
    default:
      *value = 0;
      break;
  }
  return success;
}

static int pci_bus_id(char* text, int size, int device) {
  snprintf(text, (size_t)size, "0000:%02x:00.0", device + 1);
  return success;
}

static int device_by_pci_bus_id(int* device, const char* text) {
  unsigned domain, bus;
  if (sscanf(text, "%x:%x", &domain, &bus) != 2) return invalid_value;
  *device = (int)bus - 1;
  return success;
}

// cudaDeviceProp has 1032 bytes in CUDA 12 and 1008 in CUDA 13: writing more would overrun its owner.
static int properties(char* all, int device) {
  (void)device;
  memset(all, 0, 896);
  snprintf(all, 256, "stand-in");
  return success;
}

static int no_peer(int* can) {
  *can = 0;
  return success;
}

// cudaFuncAttributes: the seventh int is maxThreadsPerBlock
static int function_attributes(int* attributes) {
  memset(attributes, 0, 56);
  attributes[6] = 1024;
  return success;
}

static int function_by_symbol(void** function, void* symbol) {
  *function = symbol;
  return success;
}

static const char* error_text(void) {
  return "error of the stand-in";
}

const struct entry device_entries[] = {
    {"cudaSetDevice", set_device},
    {"cudaGetDevice", get_device},
    {"cudaGetDeviceCount", count_devices},
    {"cudaDriverGetVersion", version},
    {"cudaRuntimeGetVersion", version},
    {"cudaDeviceGetAttribute", device_attribute},
    {"cudaDeviceGetPCIBusId", pci_bus_id},
    {"cudaDeviceGetByPCIBusId", device_by_pci_bus_id},
    {"cudaGetDeviceProperties", properties},
    {"cudaGetDeviceProperties_v2", properties},
    {"cudaDeviceCanAccessPeer", no_peer},
    {"cudaDeviceEnablePeerAccess", nothing_to_do},
    {"cudaDeviceDisablePeerAccess", nothing_to_do},
    {"cudaDeviceSetLimit", nothing_to_do},
    {"cudaDeviceSynchronize", nothing_to_do},
    {"cudaInitDevice", nothing_to_do},
    {"cudaFuncGetAttributes", function_attributes},
    {"cudaFuncSetAttribute", nothing_to_do},
    {"cudaGetFuncBySymbol", function_by_symbol},
    {"cudaGetLastError", nothing_to_do},
    {"cudaPeekAtLastError", nothing_to_do},
    {"cudaGetErrorString", error_text},
    {"cudaGetErrorName", error_text},
    {NULL, NULL},
};
