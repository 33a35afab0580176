// WarpSelect over the rows of a matrix: one warp per row, or per split of a row.

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/select/methods.h"
#include "kernels/cuda/select/warp_select.cuh"

namespace pgwarp::gpu {

namespace {

constexpr unsigned block_warps = 4;

struct WarpRows {
    const float* values;
    size_t stride;
    uint32_t length;
    uint32_t parts;  // rows * splits
    uint32_t splits;
    uint32_t k;
    float sign;
    float* out_values;      // sorted, (rows)(k)
    uint32_t* out_indices;  // likewise
    uint64_t* out_keys;     // or, for several splits, (parts)(k)
};

template <int registers, int queue>
__global__ void __launch_bounds__(block_warps * 32) select_by_warps(WarpRows rows) {
    constexpr int ahead = 4;
    const uint32_t part = blockIdx.x * block_warps + threadIdx.x / 32;
    if (part >= rows.parts) return;
    const uint32_t row = part / rows.splits, split = part % rows.splits;
    const auto bound_of = [&](uint32_t i) {
        return static_cast<uint32_t>(static_cast<uint64_t>(rows.length) * i / rows.splits);
    };
    const uint32_t begin = bound_of(split), end = bound_of(split + 1);
    const float* values = rows.values + row * rows.stride;

    WarpSelect<registers, queue> select(rows.k);
    for (uint32_t base = begin; base < end; base += ahead * 32) {
        float value[ahead];
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const uint32_t at = base + i * 32 + lane_id();
            value[i] = at < end ? values[at] * rows.sign : __builtin_nanf("");
        }
        // Not unrolled, for one copy of the sorting network: copies add code size without speed.
#pragma unroll 1
        for (int i = 0; i < ahead; ++i) {
            const float now = i == 0 ? value[0] : i == 1 ? value[1] : i == 2 ? value[2] : value[3];
            select.add(now, base + i * 32 + lane_id());
            const bool last = base + (i + 1) * 32 >= end;
            if (select.full() || last) select.merge();
            if (last) break;
        }
    }
#pragma unroll
    for (int i = 0; i < registers; ++i) {
        const uint32_t at = i * 32 + lane_id();
        if (at >= rows.k) continue;
        const uint64_t key = select.key(i);
        const size_t to = size_t{part} * rows.k + at;
        if (rows.out_keys) {
            rows.out_keys[to] = key;
        } else {
            const bool real = key != no_key;
            rows.out_values[to] = (real ? key_value(key) : bits_float(infinity_bits)) * rows.sign;
            rows.out_indices[to] = real ? key_index(key) : no_index;
        }
    }
}

template <int registers, int queue>
void launch_warps(const WarpRows& rows, cudaStream_t stream) {
    launch("select_by_warps", select_by_warps<registers, queue>,
           {divide_up(rows.parts, block_warps), block_warps * 32, 0, stream}, rows);
}

// Instances for k up to `k`, with the paper's thread queue length.
struct Instance {
    uint32_t k;
    void (*launch)(const WarpRows&, cudaStream_t);
};
constexpr Instance instances[] = {
    {32, launch_warps<1, 2>},    {128, launch_warps<4, 3>},   {256, launch_warps<8, 4>},
    {1024, launch_warps<32, 8>}, {2048, launch_warps<64, 8>},
};

}  // namespace

void warp_select(const SelectProblem& p, uint32_t splits, uint64_t* scratch, cudaStream_t stream) {
    const WarpRows rows{p.values,
                        p.stride,
                        p.length,
                        p.rows * splits,
                        splits,
                        p.k,
                        p.largest ? -1.0f : 1.0f,
                        p.out_values,
                        p.out_indices,
                        splits > 1 ? scratch : nullptr};
    for (const Instance& instance : instances) {
        if (p.k > instance.k) continue;
        instance.launch(rows, stream);
        break;
    }
    if (splits > 1) merge_keys(p, scratch, splits * p.k, stream);
}

size_t select_scratch_bytes(const SelectPlan& plan, uint32_t rows, uint32_t k) {
    return plan.splits > 1 ? size_t{rows} * plan.splits * k * sizeof(uint64_t) : 0;
}

void select(const SelectProblem& problem, const SelectPlan& plan, void* scratch,
            cudaStream_t stream) {
    if (plan.method == SelectMethod::shorts) {
        short_select(problem, stream);
        return;
    }
    auto* method = plan.method == SelectMethod::warp ? warp_select : block_select;
    method(problem, plan.splits, static_cast<uint64_t*>(scratch), stream);
}

}  // namespace pgwarp::gpu
