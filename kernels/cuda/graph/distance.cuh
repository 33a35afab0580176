// The exact distance of two rows, as lists store it, computed from the rows in float32.
#pragma once

#include "kernels/cuda/graph/rows.h"
#include "kernels/cuda/select/warp_select.cuh"

namespace pgwarp::gpu {

__device__ __forceinline__ float sum_of_lanes(float sum) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(whole_warp, sum, distance);
    return sum;
}

// Adds one dimension to a distance. Rows of cosine have unit length, and their distance is half of
// squared L2: sum_of_terms<Metric::l2>() / 2.
template <Metric metric>
__device__ __forceinline__ float add_term(float sum, float a, float b) {
    static_assert(metric == Metric::l2 || metric == Metric::inner_product || metric == Metric::l1);
    const float off = a - b;
    if constexpr (metric == Metric::inner_product) return fmaf(-a, b, sum);
    if constexpr (metric == Metric::l1) return sum + fabsf(off);
    if constexpr (metric == Metric::l2) return fmaf(off, off, sum);
}

template <Metric metric>
__device__ __forceinline__ float sum_of_terms(const float* a, const float* b, uint32_t stride) {
    float sum = 0;
    for (uint32_t d = lane_id() * 4; d < stride; d += 128) {
        const float4 x = __ldg(reinterpret_cast<const float4*>(a + d));
        const float4 y = __ldg(reinterpret_cast<const float4*>(b + d));
        sum = add_term<metric>(sum, x.x, y.x);
        sum = add_term<metric>(sum, x.y, y.y);
        sum = add_term<metric>(sum, x.z, y.z);
        sum = add_term<metric>(sum, x.w, y.w);
    }
    return sum_of_lanes(sum);
}

// nvcc does not warn of a case that a switch of device code lacks.
static_assert(std::size(all_metrics) == 4, "row_distance() has a case for each metric");

// Called by a whole warp; all lanes get the distance.
__device__ __forceinline__ float row_distance(const GraphView& view, uint32_t a, uint32_t b) {
    const float *x = view.row(a), *y = view.row(b);
    switch (view.metric) {
        case Metric::l2:
            return sum_of_terms<Metric::l2>(x, y, view.stride);
        case Metric::cosine:
            return sum_of_terms<Metric::l2>(x, y, view.stride) / 2;
        case Metric::inner_product:
            return sum_of_terms<Metric::inner_product>(x, y, view.stride);
        case Metric::l1:
            return sum_of_terms<Metric::l1>(x, y, view.stride);
    }
    return 0;
}

}  // namespace pgwarp::gpu
