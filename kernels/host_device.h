// Functions for host and device: nvcc compiles them for the device, and any compiler for tests that
// need no device.
#pragma once

#ifdef __CUDACC__
#define PGWARP_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PGWARP_HOST_DEVICE inline
#endif

#ifdef __CUDA_ARCH__
#define PGWARP_UNROLL _Pragma("unroll")
#else
#define PGWARP_UNROLL
#endif
