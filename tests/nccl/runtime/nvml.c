// A libnvidia-ml.so.1 for the devices of devices.c: handles are numbers of PCI buses, and nothing is
// connected.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "stand_in.h"

#pragma GCC visibility push(default)

enum { nvml_success = 0, nvml_not_supported = 3, nvml_not_found = 6 };

static unsigned bus_of(void* handle) {
  return (unsigned)(uintptr_t)handle;
}

int nvmlInit(void) {
  return nvml_success;
}
int nvmlInit_v2(void) {
  return nvml_success;
}
int nvmlShutdown(void) {
  return nvml_success;
}
const char* nvmlErrorString(int error) {
  (void)error;
  return "error of the stand-in";
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = (unsigned)number_of("NCCL_BENCH_DEVICES", 8);
  return nvml_success;
}
int nvmlDeviceGetCount(unsigned* count) {
  return nvmlDeviceGetCount_v2(count);
}

int nvmlDeviceGetHandleByIndex(unsigned index, void** handle) {
  *handle = (void*)(uintptr_t)(index + 1);
  return nvml_success;
}

int nvmlDeviceGetHandleByPciBusId(const char* text, void** handle) {
  unsigned domain, bus;
  if (sscanf(text, "%x:%x", &domain, &bus) != 2) return nvml_not_found;
  *handle = (void*)(uintptr_t)bus;
  return nvml_success;
}

int nvmlDeviceGetIndex(void* handle, unsigned* index) {
  *index = bus_of(handle) - 1;
  return nvml_success;
}

int nvmlDeviceGetCudaComputeCapability(void* handle, int* major, int* minor) {
  (void)handle;
  *major = 9;
  *minor = 0;
  return nvml_success;
}

int nvmlDeviceGetP2PStatus(void* one, void* other, int index, int* status) {
  (void)one, (void)other, (void)index;
  *status = 1;  // NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED
  return nvml_success;
}

int nvmlDeviceGetNvLinkCapability(void) {
  return nvml_not_supported;
}
int nvmlDeviceGetNvLinkState(void) {
  return nvml_not_supported;
}
int nvmlDeviceGetNvLinkRemotePciInfo(void) {
  return nvml_not_supported;
}
int nvmlDeviceGetFieldValues(void) {
  return nvml_not_supported;
}

struct pci_info {  // nvmlPciInfo_t, version 3
  char legacy_bus_id[16];
  unsigned domain, bus, device, id, subsystem_id;
  char bus_id[32];
};
int nvmlDeviceGetPciInfo_v3(void* handle, struct pci_info* info) {
  memset(info, 0, sizeof *info);
  info->bus = bus_of(handle);
  info->id = 0x233010de;
  snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "0000:%02X:00.0", info->bus);
  snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
  return nvml_success;
}

struct pci_info_ext {  // nvmlPciInfoExt_t, version 1
  unsigned version, domain, bus, device, id, subsystem_id, base_class, sub_class;
  char bus_id[32];
};
int nvmlDeviceGetPciInfoExt(void* handle, struct pci_info_ext* info) {
  *info = (struct pci_info_ext){
      .version = info->version, .bus = bus_of(handle), .id = 0x233010de, .base_class = 3, .sub_class = 2};
  snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
  return nvml_success;
}

int nvmlDeviceGetPcieLinkMaxSpeed(void* handle, unsigned* speed) {
  (void)handle;
  *speed = 32000;
  return nvml_success;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void* handle, unsigned* generation) {
  (void)handle;
  *generation = 5;
  return nvml_success;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* handle, unsigned* width) {
  (void)handle;
  *width = 16;
  return nvml_success;
}

#pragma GCC visibility pop
