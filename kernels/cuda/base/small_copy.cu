#include "kernels/cuda/base/small_copy.h"

#include "kernels/cuda/base/launch.cuh"

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 128;
static_assert(small_copy_unit == sizeof(uint4));

__global__ void __launch_bounds__(threads)
    copy_units(uint4* to, const uint4* from, unsigned units) {
    wait_for_kernels_before();
    const unsigned i = blockIdx.x * threads + threadIdx.x;
    if (i < units) to[i] = from[i];
}

}  // namespace

void copy_small_async(char* to, const char* from, size_t bytes, cudaStream_t stream) {
    const auto units = static_cast<unsigned>(divide_up(bytes, small_copy_unit));
    launch("copy_units", copy_units, {divide_up(units, threads), threads, 0, stream},
           reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), units);
}

}  // namespace pgwarp::gpu
