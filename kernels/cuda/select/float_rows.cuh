// Streams rows of floats from global memory through a BlockSelect, with 16-byte loads. A thread
// compares the minimum of its loaded values with the bound first, so that a value above the bound
// costs little more than its load.
#pragma once

#include "kernels/cuda/select/block_select.cuh"

#include <cuda_pipeline_primitives.h>

namespace pgwarp::gpu {

// Columns [begin, end) of one row.
class FloatRow {
  public:
    static constexpr int group = 4;  // values per load

    struct Source {
        const float* values;  // points to column 0
        const float* addend;  // (columns), aligned like values; or null
        float sign;
        uint32_t first_index;  // of column 0
        uint64_t floor;        // keys at or below are skipped
    };

    __device__ FloatRow(const Source& source, int begin, int end)
        : source_(source), begin_(begin), end_(end) {}
    __device__ int begin() const { return begin_; }
    __device__ int end() const { return end_; }

    __device__ uint64_t key(int at, float value) const {
        return make_key(value, source_.first_index + at);
    }
    // Like key(), but no_key for NaN and for keys at or below the floor.
    __device__ uint64_t key_above_floor(int at, float value) const {
        const uint64_t all = key(at, value);
        return all > source_.floor && value == value ? all : no_key;
    }
    __device__ uint64_t key_at(int at) const {
        float value = source_.values[at] * source_.sign;
        if (source_.addend) value += source_.addend[at];
        return key_above_floor(at, value);
    }

    // The last column at or before `at` whose address is aligned to 16 bytes.
    __device__ int aligned(int at) const {
        const auto address = reinterpret_cast<uintptr_t>(source_.values + at);
        return at - static_cast<int>(address / sizeof(float) % group);
    }
    // The four values at columns `at` to `at` + 3; NaN outside the row.
    __device__ void load(int at, float (&value)[group]) const {
        if (at >= begin_ && at + group <= end_) {
            complete(at, __ldcs(reinterpret_cast<const float4*>(source_.values + at)), value);
            return;
        }
#pragma unroll
        for (int i = 0; i < group; ++i) {
            const bool inside = at + i >= begin_ && at + i < end_;
            value[i] = inside ? source_.values[at + i] * source_.sign : __builtin_nanf("");
            if (inside && source_.addend) value[i] += source_.addend[at + i];
        }
    }

    // Applies sign and addend to four raw values of columns `at` to `at` + 3.
    __device__ void complete(int at, const float4& four, float (&value)[group]) const {
        value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
#pragma unroll
        for (int i = 0; i < group; ++i) value[i] *= source_.sign;
        if (source_.addend) {
            const float4 add = __ldg(reinterpret_cast<const float4*>(source_.addend + at));
            value[0] += add.x, value[1] += add.y, value[2] += add.z, value[3] += add.w;
        }
    }
    __device__ const float* values(int at) const {
        return source_.values + at;
    }

    __device__ FloatRow part(int begin, int end) const {
        return FloatRow(source_, begin, end);
    }

  private:
    Source source_;
    int begin_, end_;
};

// Called by the whole block. Offers this thread's groups next .. groups - 1, four adjacent values
// each, to the selection. load(g, value) returns group g, whose first column is base + g * step.
// A group that has to wait for a cut is loaded again afterwards, so that it occupies no registers
// during the cut.
template <class Shape, class Load>
__device__ __forceinline__ void offer_groups(BlockSelect<Shape>& select, const FloatRow& row,
                                             int base, int next, int groups, Load load) {
    constexpr int group = FloatRow::group, step = Shape::threads * group;
    while (true) {
#pragma unroll 1
        for (; next < groups && select.room() >= group * 32; ++next) {
            float value[group];
            load(next, value);
            const float least = fminf(fminf(value[0], value[1]), fminf(value[2], value[3]));
            if (!__any_sync(whole_warp, least <= select.bound())) continue;
#pragma unroll
            for (int i = 0; i < group; ++i) {
                const uint64_t key = row.key_above_floor(base + next * step + i, value[i]);
                select.collect(value[i] <= select.bound() && key != no_key, key);
            }
        }
        if (!__syncthreads_or(next < groups)) break;
        select.cut();
    }
}

// Called by a warp. Collects all groups at once if the segment has room for the keys within the
// bound; otherwise returns false and collects nothing.
template <class Shape, int groups, class Load>
__device__ __forceinline__ bool collect_groups(BlockSelect<Shape>& select, const FloatRow& row,
                                               int base, Load load) {
    constexpr int group = FloatRow::group, step = Shape::threads * group;
    const float bound = select.bound();
    uint32_t mine = 0;
#pragma unroll
    for (int g = 0; g < groups; ++g) {
        float value[group];
        load(g, value);
#pragma unroll
        for (int i = 0; i < group; ++i) mine += value[i] <= bound;
    }
    uint64_t* to = select.reserve(mine);
    if (!to) return false;
#pragma unroll
    for (int g = 0; g < groups; ++g) {
        float value[group];
        load(g, value);
#pragma unroll
        for (int i = 0; i < group; ++i)
            if (value[i] <= bound) *to++ = row.key(base + g * step + i, value[i]);
    }
    return true;
}

// Called by the whole block. Offers the row to a selection that may hold other keys. The caller
// cuts afterwards.
template <class Shape>
__device__ void stream_row(BlockSelect<Shape>& select, const FloatRow& row) {
    constexpr int groups = 4, step = Shape::threads * FloatRow::group;
#pragma unroll 1
    for (int first = row.aligned(row.begin()); first < row.end(); first += groups * step) {
        const int base = first + static_cast<int>(threadIdx.x) * FloatRow::group;
        offer_groups(select, row, base, 0, groups,
                     [&](int g, float(&value)[4]) { row.load(base + g * step, value); });
    }
}

// Like stream_row(), for an empty selection: the first keys need no filter. Ends with a cut.
template <class Shape>
__device__ void select_row(BlockSelect<Shape>& select, const FloatRow& row) {
    const int head = min(row.end() - row.begin(), Shape::capacity);
    select.fill(head, [&](uint32_t i) { return row.key_at(row.begin() + static_cast<int>(i)); });
    if (row.begin() + head == row.end()) return;
    stream_row(select, row.part(row.begin() + head, row.end()));
    select.cut();
}

// Prefetched values in shared memory. A thread copies asynchronously, some chunks ahead, the values
// that it will read itself, so no barrier is needed.
template <class Shape, int stage_count, int group_count>
struct FloatRing {
    static constexpr int stages = stage_count;
    static constexpr int groups = group_count;
    static constexpr int chunk = groups * Shape::threads * FloatRow::group;
    float4 slot[stages][groups][Shape::threads];
};

// Like stream_row(), for long rows without a floor: loads stay in flight while keys are collected
// and cut.
template <class Shape, class Ring>
__device__ void stream_ahead(BlockSelect<Shape>& select, const FloatRow& row, Ring& ring) {
    constexpr int group = FloatRow::group, step = Shape::threads * group;
    int first = row.aligned(row.begin());
    if (first < row.begin()) first += group;
    const int chunks = max(0, row.end() - first) / Ring::chunk;
    if (chunks == 0) {
        stream_row(select, row);
        return;
    }
    const int mine = first + static_cast<int>(threadIdx.x) * group;
    const auto fetch = [&](int chunk) {
        if (chunk < chunks)
#pragma unroll
            for (int g = 0; g < Ring::groups; ++g)
                __pipeline_memcpy_async(&ring.slot[chunk % Ring::stages][g][threadIdx.x],
                                        row.values(mine + chunk * Ring::chunk + g * step), 16);
        __pipeline_commit();
    };
#pragma unroll
    for (int chunk = 0; chunk < Ring::stages - 1; ++chunk) fetch(chunk);
    if (row.begin() < first) stream_row(select, row.part(row.begin(), first));
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        fetch(chunk + Ring::stages - 1);
        __pipeline_wait_prior(Ring::stages - 1);
        const int base = mine + chunk * Ring::chunk, stage = chunk % Ring::stages;
        const auto load = [&](int g, float(&value)[group]) {
            row.complete(base + g * step, ring.slot[stage][g][threadIdx.x], value);
        };
        float least = bits_float(infinity_bits);
#pragma unroll
        for (int g = 0; g < Ring::groups; ++g) {
            float value[group];
            load(g, value);
            least = fminf(least, fminf(fminf(value[0], value[1]), fminf(value[2], value[3])));
        }
        int next = Ring::groups;
        if (__any_sync(whole_warp, least <= select.bound()) &&
            !collect_groups<Shape, Ring::groups>(select, row, base, load))
            next = 0;
        offer_groups(select, row, base, next, Ring::groups, load);
    }
    const int rest = first + chunks * Ring::chunk;
    if (rest < row.end()) stream_row(select, row.part(rest, row.end()));
}

}  // namespace pgwarp::gpu
