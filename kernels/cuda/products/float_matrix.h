#pragma once

#include "kernels/common.h"

namespace pgwarp::gpu {

// A matrix on the device: row i at rows + i * stride.
struct FloatMatrix {
    const float* rows;
    size_t count;
    uint32_t dims;
    size_t stride;
    const float* origin = nullptr;  // (dims), subtracted from each row; or null
};

}  // namespace pgwarp::gpu
