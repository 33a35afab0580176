#pragma once

#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// The power of two by which a query's table entries, at most 2 |q| |w|, are divided to be below
// 4096: the sum of eight of them then fits half precision.
__device__ __forceinline__ float table_scale(float squared_norm, float largest_word) {
    const float bound = 2 * sqrtf(squared_norm) * largest_word;
    if (!(bound > 1e-30f)) return 1e-30f;
    const int exponent = static_cast<int>(__float_as_uint(bound) >> 23) + 1 - 12;
    return __uint_as_float(static_cast<uint32_t>(max(1, min(254, exponent))) << 23);
}

// Computes the entries (4 codes)(2 columns) of `count` queries' tables, for codes from `code` on
// and columns from `piece` on. Query i's vector is vectors + i * dims.
template <int count>
__device__ __forceinline__ void table_entries(const StoreView& store, const float* vectors,
                                              uint32_t piece, uint32_t code,
                                              float (&entry)[count][4][2]) {
    const DeviceModel& model = store.model;
    const float factor = product_factor(model.shape.metric);
#pragma unroll
    for (int column = 0; column < 2; ++column) {
        float sum[count][4] = {};
        if (piece + column < model.shape.m) {
            const uint32_t begin = __ldg(model.piece_begins + piece + column);
            const uint32_t end = __ldg(model.piece_begins + piece + column + 1);
            // Codewords of an additive quantizer have all dimensions, so q_j starts at dimension 0.
            const uint32_t before = model.shape.search_rounds > 0 ? begin : 0;
            for (uint32_t row = begin; row < end; ++row) {
                const float4 w = __ldg(reinterpret_cast<const float4*>(
                    model.codebook + size_t{row} * codewords + code));
#pragma unroll
                for (int q = 0; q < count; ++q) {
                    const float x = __ldg(vectors + q * model.shape.dims + (row - before));
                    sum[q][0] = fmaf(x, w.x, sum[q][0]);
                    sum[q][1] = fmaf(x, w.y, sum[q][1]);
                    sum[q][2] = fmaf(x, w.z, sum[q][2]);
                    sum[q][3] = fmaf(x, w.w, sum[q][3]);
                }
            }
        }
#pragma unroll
        for (int q = 0; q < count; ++q)
#pragma unroll
            for (int i = 0; i < 4; ++i) entry[q][i][column] = sum[q][i] * factor;
    }
}

// The unit of a table (see code_tiles.h) that a thread computes. A warp computes 4 adjacent units
// of each of 8 neighboring groups of codes, so that both its loads and its stores are coalesced.
struct TableUnit {
    uint32_t index;
    uint32_t piece;  // of the first column
    uint32_t code;   // the first

    __device__ TableUnit(uint32_t thread, uint32_t width) {
        const uint32_t in_slice = thread % table_units(width);
        const uint32_t pairs = width / 2;
        const uint32_t patch = in_slice / 32, patches = pairs / 4;
        const uint32_t pair = patch % patches * 4 + in_slice % 4;
        const uint32_t four = patch / patches * 8 + in_slice / 4 % 8;
        const uint32_t slice = thread / table_units(width);
        index = slice * table_units(width) + four * pairs + pair;
        piece = slice * width + pair * 2;
        code = four * 4;
    }
};

}  // namespace pgwarp::gpu
