// Rows of up to 1024 columns: one warp per row, the row in registers. See short_row.cuh.

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/select/methods.h"
#include "kernels/cuda/select/short_row.cuh"

namespace pgwarp::gpu {

namespace {

constexpr unsigned block_warps = 4;

struct ShortRows {
    const float* values;
    size_t stride;
    uint32_t rows;
    uint32_t length;
    uint32_t k;
    float sign;
    float* out_values;
    uint32_t* out_indices;

    __device__ void put(size_t at, uint64_t key) const {
        const bool real = key != no_key;
        out_values[at] = (real ? key_value(key) : bits_float(infinity_bits)) * sign;
        out_indices[at] = real ? key_index(key) : no_index;
    }
};

template <int items>
__device__ ShortRow<items> load_row(const ShortRows& rows, uint32_t row) {
    const float* values = rows.values + row * rows.stride;
    return ShortRow<items>([&](uint32_t column, float(&four)[4]) {
        load_four(values, column, rows.length, four);
#pragma unroll
        for (int i = 0; i < 4; ++i) four[i] *= rows.sign;
    });
}

template <int items>
__global__ void __launch_bounds__(block_warps * 32, 5) select_few(ShortRows rows) {
    __shared__ uint64_t room[block_warps][ShortRow<items>::kept];
    const uint32_t row = blockIdx.x * block_warps + threadIdx.x / 32;
    if (row >= rows.rows) return;
    load_row<items>(rows, row).select(
        rows.k, room[threadIdx.x / 32],
        [&](uint32_t i, uint64_t key) { rows.put(size_t{row} * rows.k + i, key); });
}

// Each lane holds a run of the result; shared memory transposes the runs for coalesced stores.
template <int items>
__global__ void __launch_bounds__(block_warps * 32) sort_rows(ShortRows rows) {
    constexpr int run = items + 1;  // one slot of padding against bank conflicts
    __shared__ uint64_t room[block_warps][32 * run];
    const uint32_t row = blockIdx.x * block_warps + threadIdx.x / 32;
    if (row >= rows.rows) return;
    uint64_t key[items];
    load_row<items>(rows, row).sort(key);
    uint64_t* mine = room[threadIdx.x / 32];
#pragma unroll
    for (int i = 0; i < items; ++i) mine[lane_id() * run + i] = key[i];
    __syncwarp();
    for (uint32_t i = lane_id(); i < rows.k; i += 32)
        rows.put(size_t{row} * rows.k + i,
                 i < 32 * items ? mine[i / items * run + i % items] : no_key);
}

template <int items>
void launch_items(const ShortRows& rows, cudaStream_t stream) {
    launch("short rows", rows.k <= ShortRow<items>::kept ? select_few<items> : sort_rows<items>,
           {divide_up(rows.rows, block_warps), block_warps * 32, 0, stream}, rows);
}

}  // namespace

void short_select(const SelectProblem& p, cudaStream_t stream) {
    const ShortRows rows{p.values,     p.stride,     p.rows,
                         p.length,     p.k,          p.largest ? -1.0f : 1.0f,
                         p.out_values, p.out_indices};
    auto* launch_all = &launch_items<32>;
    if (p.length <= ShortRow<4>::most)
        launch_all = &launch_items<4>;
    else if (p.length <= ShortRow<8>::most)
        launch_all = &launch_items<8>;
    else if (p.length <= ShortRow<16>::most)
        launch_all = &launch_items<16>;
    launch_all(rows, stream);
}

}  // namespace pgwarp::gpu
