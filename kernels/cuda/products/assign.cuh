#pragma once

#include "kernels/cuda/select/warp_select.cuh"

namespace pgwarp::gpu {

struct ProductRows {
    const float* products;  // (row)(stride), aligned to 16 bytes
    size_t stride;          // a multiple of 4
    const float* norms;     // (count), aligned to 16 bytes
    uint32_t count;
};

// Called by a warp. Returns the smallest products[i] + norms[i] of a row, as a key.
__device__ __forceinline__ uint64_t nearest_key(const ProductRows& rows, size_t row) {
    const float* products = rows.products + row * rows.stride;
    float least = __builtin_nanf("");
    uint32_t index = no_index;
    const auto see = [&](float value, uint32_t i) {
        if (!(value >= least)) least = value, index = i;  // true also for the initial NaN
    };
    const uint32_t whole = rows.count / 4;
    for (uint32_t i = lane_id(); i < whole; i += 32) {
        const float4 product = __ldcs(reinterpret_cast<const float4*>(products) + i);
        const float4 norm = __ldg(reinterpret_cast<const float4*>(rows.norms) + i);
        see(product.x + norm.x, 4 * i);
        see(product.y + norm.y, 4 * i + 1);
        see(product.z + norm.z, 4 * i + 2);
        see(product.w + norm.w, 4 * i + 3);
    }
    for (uint32_t i = 4 * whole + lane_id(); i < rows.count; i += 32)
        see(products[i] + rows.norms[i], i);
    uint64_t key = index == no_index ? no_key : make_key(least, index);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const uint64_t other = __shfl_xor_sync(whole_warp, key, distance);
        key = other < key ? other : key;
    }
    return key;
}

}  // namespace pgwarp::gpu
