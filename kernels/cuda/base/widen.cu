#include "kernels/cuda/base/widen.h"

#include "kernels/cuda/base/launch.cuh"

#include <cuda_fp16.h>

#include <stdexcept>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;
constexpr unsigned most_blocks = 4096;

__global__ void widen_kernel(const __half* halves, size_t count, float* floats) {
    const size_t stride = size_t{gridDim.x} * blockDim.x;
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
        floats[i] = __half2float(halves[i]);
}

}  // namespace

void widen(const float16* halves, size_t count, float* floats, cudaStream_t stream) {
    const size_t blocks = std::min<size_t>(divide_up(count, size_t{threads}), most_blocks);
    launch("widen", widen_kernel, {static_cast<unsigned>(blocks), threads, 0, stream},
           reinterpret_cast<const __half*>(halves), count, floats);
}

void RowUpload::upload(float* to, const void* rows, size_t count, cudaStream_t stream) {
    if (elements_ == RowElements::float32)
        return uploader_.upload(to, static_cast<const float*>(rows), count, stream);
    if (count > halves_.size()) throw std::logic_error("no room for an upload of halves");
    uploader_.upload(halves_.data(), static_cast<const float16*>(rows), count, stream);
    widen(halves_.data(), count, to, stream);
}

}  // namespace pgwarp::gpu
