// A stand-in for NVIDIA's management library: GPU 0 is well and polls, GPU 1 has every trouble, GPU 2 is
// lost. STUCK names a function that never returns, LACKS one that answers "not supported".
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOT_SUPPORTED = 3, TOO_SMALL = 7, DRIVER_NOT_LOADED = 9, LOST = 15 };

struct utilization {
  unsigned gpu, memory;
};
struct memory {
  unsigned long long total, free, used;
};
struct process {
  unsigned pid;
  unsigned long long memory;
  unsigned instance, compute_instance;
};
struct pci {
  char legacy[16];
  unsigned domain, bus, device, ids, subsystem;
  char id[32];
};
struct field {
  uint32_t id, scope;
  int64_t timestamp, latency;
  uint32_t type, result;
  uint64_t value;
};
struct fabric {
  uint8_t cluster[16];
  uint32_t status, clique;
  uint32_t state;
};

static int named(const char* variable, const char* function) {
  const char* value = getenv(variable);
  return value != NULL && strcmp(value, function) == 0;
}

static int begins(const char* function) {
  while (named("STUCK", function)) pause();
  return named("LACKS", function) ? NOT_SUPPORTED : 0;
}

#define BEGIN()                           \
  do {                                    \
    const int refused = begins(__func__); \
    if (refused) return refused;          \
  } while (0)

static int index_of(void* handle) {
  return (int)(uintptr_t)handle - 1;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  BEGIN();
  return getenv("NO_DRIVER") != NULL ? DRIVER_NOT_LOADED : 0;
}

const char* nvmlErrorString(int error) {
  return error == LOST ? "GPU is lost" : error == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Not Supported";
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  BEGIN();
  *count = 3;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  BEGIN();
  *handle = (void*)(uintptr_t)(index + 1);
  return index == 2 ? LOST : 0;
}

int nvmlDeviceGetName(void* handle, char* name, unsigned size) {
  BEGIN();
  snprintf(name, size, "%s", index_of(handle) == 0 ? "H200" : "A100");
  return 0;
}

int nvmlDeviceGetUUID(void* handle, char* uuid, unsigned size) {
  BEGIN();
  snprintf(uuid, size, "GPU-%d", index_of(handle));
  return 0;
}

int nvmlDeviceGetUtilizationRates(void* handle, struct utilization* usage) {
  BEGIN();
  usage->gpu = 100;
  usage->memory = (unsigned)index_of(handle) * 7;
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* handle, struct memory* memory) {
  (void)handle;
  BEGIN();
  memory->total = 4ull << 30;
  memory->free = 3ull << 30;
  memory->used = 1ull << 30;
  return 0;
}

int nvmlDeviceGetPowerUsage(void* handle, unsigned* milliwatts) {
  (void)handle;
  BEGIN();
  *milliwatts = 118500;
  return 0;
}

int nvmlDeviceGetEnforcedPowerLimit(void* handle, unsigned* milliwatts) {
  (void)handle;
  BEGIN();
  *milliwatts = 700000;
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, struct process* processes) {
  BEGIN();
  const unsigned room = *count, there = index_of(handle) == 0 ? 2 : 0;
  *count = there;
  if (there == 0) return 0;
  if (processes == NULL || room < there) return TOO_SMALL;
  processes[0] = (struct process){9, 2ull << 20, 0, 0};
  processes[1] = (struct process){7, ~0ull, 0, 0};
  return 0;
}

int nvmlDeviceGetPciInfo_v3(void* handle, struct pci* pci) {
  BEGIN();
  memset(pci, 0, sizeof *pci);
  snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", 0x81 + index_of(handle));
  return 0;
}

int nvmlDeviceGetMinorNumber(void* handle, unsigned* minor) {
  BEGIN();
  *minor = (unsigned)index_of(handle) + 4;
  return 0;
}

int nvmlDeviceGetClockInfo(void* handle, unsigned kind, unsigned* clock) {
  BEGIN();
  *clock = kind == 1 ? (index_of(handle) == 0 ? 1980 : 345) : 0;
  return 0;
}

int nvmlDeviceGetMaxClockInfo(void* handle, unsigned kind, unsigned* clock) {
  (void)handle;
  BEGIN();
  *clock = kind == 1 ? 1980 : 0;
  return 0;
}

int nvmlDeviceGetPerformanceState(void* handle, int* state) {
  BEGIN();
  *state = index_of(handle) * 8;
  return 0;
}

int nvmlDeviceGetTemperature(void* handle, unsigned sensor, unsigned* degrees) {
  (void)sensor;
  BEGIN();
  *degrees = index_of(handle) == 0 ? 41 : 92;
  return 0;
}

// From R535 on, and its older name.
int nvmlDeviceGetCurrentClocksEventReasons(void* handle, unsigned long long* reasons) {
  BEGIN();
  *reasons = index_of(handle) == 0 ? 1 : 0x40 | 0x80;
  return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* handle, unsigned long long* reasons) {
  BEGIN();
  *reasons = index_of(handle) == 0 ? 2 : 0x20;
  return 0;
}

int nvmlDeviceGetTotalEccErrors(void* handle, unsigned error, unsigned counter, unsigned long long* count) {
  BEGIN();
  *count = index_of(handle) == 0 || counter != 0 ? 0 : error == 1 ? 3 : 12;
  return 0;
}

int nvmlDeviceGetRemappedRows(void* handle, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  BEGIN();
  *corrected = 1;
  *uncorrected = 2;
  *pending = 0;
  *failed = index_of(handle) == 1;
  return 0;
}

int nvmlDeviceGetPcieReplayCounter(void* handle, unsigned* count) {
  BEGIN();
  *count = (unsigned)index_of(handle) * 17;
  return 0;
}

int nvmlDeviceGetNvLinkState(void* handle, unsigned link, unsigned* active) {
  BEGIN();
  if (link >= 4) return NOT_SUPPORTED;
  *active = index_of(handle) == 0 || link != 2;
  return 0;
}

int nvmlDeviceGetNvLinkErrorCounter(void* handle, unsigned link, unsigned kind, unsigned long long* count) {
  BEGIN();
  *count = index_of(handle) == 1 && link == 3 && kind == 2 ? 5 : 0;
  return 0;
}

int nvmlDeviceGetFieldValues(void* handle, int count, struct field* fields) {
  BEGIN();
  for (int i = 0; i < count; ++i) {
    fields[i].result = fields[i].id == 230 ? 0 : NOT_SUPPORTED;
    fields[i].value = (uint64_t)index_of(handle);
  }
  return 0;
}

int nvmlDeviceGetGpuFabricInfo(void* handle, struct fabric* fabric) {
  BEGIN();
  fabric->state = index_of(handle) == 0 ? 3 : 2;
  return 0;
}
