#include "bench/cuda/bench.h"
#include "kernels/cuda/base/launch.cuh"

namespace pgwarp::gpu {

namespace {

__global__ void fill(float* values, size_t count, uint64_t seed) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += size_t{gridDim.x} * blockDim.x) {
        uint64_t z = seed * 0xd1342543de82ef95ull + (i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        values[i] = static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1.0p-24f;
    }
}

}  // namespace

void fill_uniform(float* values, size_t count, uint64_t seed, cudaStream_t stream) {
    launch("fill", fill, {4096, 256, 0, stream}, values, count, seed);
}

}  // namespace pgwarp::gpu
