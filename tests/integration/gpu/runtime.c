// A stand-in for libcudart.so.12: the calls that programs make, each around one of the driver's.
#define CALL(name, of_driver)      \
  int of_driver(void);             \
  int name(void) {                 \
    const int error = of_driver(); \
    return error ? error + 1 : 0;  \
  }

CALL(cudaStreamSynchronize, cuStreamSynchronize)
CALL(cudaEventSynchronize, cuEventSynchronize)
CALL(cudaDeviceSynchronize, cuCtxSynchronize)
CALL(cudaMemcpy, cuMemcpyDtoH_v2)
CALL(cudaFree, cuMemFree_v2)
CALL(cudaMalloc, cuMemAlloc_v2)
CALL(cudaLaunchKernel, cuLaunchKernel)
CALL(cudaGraphLaunch, cuGraphLaunch)
