// Copies that begin sooner than those of the copy engine, for few bytes.
#pragma once

#include "kernels/cuda/base/stream.h"

#include <cstddef>

namespace pgwarp::gpu {

// Both sides have room for a multiple of this.
inline constexpr size_t small_copy_unit = 16;
// Beyond this the copy engine is faster.
inline constexpr size_t most_small_copy = size_t{64} << 10;

// By a kernel, from mapped host memory to the device. `bytes` are rounded up to whole units.
void copy_small_async(char* to, const char* from, size_t bytes, cudaStream_t stream);

}  // namespace pgwarp::gpu
