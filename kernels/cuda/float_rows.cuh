// Rows of floats in global memory, streamed through a BlockSelect. A block streams its part of a
// row with 16-byte loads, 16 values a thread in flight; the smallest of a thread's 16 is compared
// with the bound first, so that a value that does not matter costs little more than its load.
#pragma once

#include "kernels/cuda/block_select.cuh"

namespace pgwarp::gpu {

// One row, columns begin .. end.
class FloatRow {
  public:
    static constexpr int group = 4;  // values a load brings

    struct Source {
        const float* values;  // of column 0
        const float* addend;  // (columns), aligned as the values are; or null
        float sign;
        uint32_t first_index;  // of column 0
        uint64_t floor;        // keys up to this one are left out
    };

    __device__ FloatRow(const Source& source, int begin, int end)
        : source_(source), begin_(begin), end_(end) {}
    __device__ int begin() const { return begin_; }
    __device__ int end() const { return end_; }

    __device__ uint64_t key(int at) const {
        float value = source_.values[at] * source_.sign;
        if (source_.addend) value += source_.addend[at];
        return value == value ? key(at, value) : no_key;
    }
    __device__ uint64_t key(int at, float value) const {
        const uint64_t key = make_key(value, source_.first_index + at);
        return key > source_.floor ? key : no_key;
    }

    // The last column at or before `at` from which 16-byte loads are aligned.
    __device__ int aligned(int at) const {
        const auto address = reinterpret_cast<uintptr_t>(source_.values + at);
        return at - static_cast<int>(address / sizeof(float) % group);
    }
    // Four values from `at` on, NaN outside the row.
    __device__ void load(int at, float (&value)[group]) const {
        if (at >= begin_ && at + group <= end_) {
            const float4 four = __ldcs(reinterpret_cast<const float4*>(source_.values + at));
            value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
#pragma unroll
            for (int i = 0; i < group; ++i) value[i] *= source_.sign;
            if (source_.addend) {
                const float4 add = __ldg(reinterpret_cast<const float4*>(source_.addend + at));
                value[0] += add.x, value[1] += add.y, value[2] += add.z, value[3] += add.w;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < group; ++i) {
            const bool inside = at + i >= begin_ && at + i < end_;
            value[i] = inside ? source_.values[at + i] * source_.sign : __builtin_nanf("");
            if (inside && source_.addend) value[i] += source_.addend[at + i];
        }
    }

    __device__ FloatRow from(int begin) const { return FloatRow(source_, begin, end_); }

  private:
    Source source_;
    int begin_, end_;
};

// The whole block: the row through a selection that may have seen other keys.
template <class Shape>
__device__ void stream_row(BlockSelect<Shape>& select, const FloatRow& row) {
    constexpr int groups = 4, group = FloatRow::group;
    constexpr int step = Shape::threads * group;
    const int thread = static_cast<int>(threadIdx.x) * group;
    for (int base = row.aligned(row.begin()); base < row.end(); base += groups * step) {
        float value[groups][group];
#pragma unroll
        for (int g = 0; g < groups; ++g) row.load(base + g * step + thread, value[g]);
        float least = value[0][0];
#pragma unroll
        for (int g = 0; g < groups; ++g)
#pragma unroll
            for (int i = 0; i < group; ++i) least = fminf(least, value[g][i]);

        int next = __any_sync(whole_warp, least <= select.bound()) ? 0 : groups;
        while (true) {
#pragma unroll
            for (int g = 0; g < groups; ++g) {
                if (g != next || select.room() < group * 32) continue;
#pragma unroll
                for (int i = 0; i < group; ++i) {
                    const uint64_t key = row.key(base + g * step + thread + i, value[g][i]);
                    select.collect(value[g][i] <= select.bound() && key != no_key, key);
                }
                next = g + 1;
            }
            if (!__syncthreads_or(next < groups)) break;
            select.cut();
        }
    }
    select.cut();
}

// The same for a selection that has seen nothing: the first keys need no filter.
template <class Shape>
__device__ void select_row(BlockSelect<Shape>& select, const FloatRow& row) {
    const int head = min(row.end() - row.begin(), Shape::capacity);
    select.fill(head, [&](uint32_t i) { return row.key(row.begin() + static_cast<int>(i)); });
    if (row.begin() + head < row.end()) stream_row(select, row.from(row.begin() + head));
}

}  // namespace pgwarp::gpu
