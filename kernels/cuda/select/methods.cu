// BlockSelect over the rows of a matrix.

#include "kernels/cuda/select/methods.h"

#include "kernels/cuda/select/float_rows.cuh"
#include "kernels/cuda/base/launch.cuh"

namespace pgwarp::gpu {

namespace {

struct FloatRows {
    const float* values;
    size_t stride;
    uint32_t length;
    const float* addend;
    float sign;
    uint32_t first_index;
};

struct SelectOutput {
    uint32_t k;
    float sign;
    float* values;      // sorted results, (rows)(k)
    uint32_t* indices;  // likewise
    uint64_t* keys;     // or unordered keys, (rows * splits)(k)
};

// `sort_items`: as in BlockSelect::sort(); 0 writes unordered keys.
template <class Shape, int sort_items>
__device__ void write_result(BlockSelect<Shape>& select, const SelectOutput& out, size_t row) {
    if constexpr (sort_items == 0) {
        const uint32_t count = select.kept_count();
        for (uint32_t i = threadIdx.x; i < out.k; i += Shape::threads)
            out.keys[row * out.k + i] = i < count ? select.kept()[i] : no_key;
    } else {
        select.template sort<sort_items>([&](uint32_t i, uint64_t key) {
            const bool real = key != no_key;
            const float value = real ? key_value(key) : bits_float(infinity_bits);
            out.values[row * out.k + i] = value * out.sign;
            out.indices[row * out.k + i] = real ? key_index(key) : no_index;
        });
    }
}

// Prefetch depth, limited so that Shape::streaming_blocks fit a multiprocessor's shared memory.
template <class Shape>
using Ring = FloatRing<Shape, Shape::threads <= 128 ? 3 : 2, Shape::threads <= 256 ? 4 : 2>;

template <class Shape>
struct StreamShared {
    typename BlockSelect<Shape>::Storage storage;
    Ring<Shape> ring;
};

template <class Shape, int sort_items>
__global__ void __launch_bounds__(Shape::threads, Shape::streaming_blocks)
    select_floats(FloatRows rows, uint32_t splits, const uint64_t* start, SelectOutput out) {
    auto& shared = *shared_memory<StreamShared<Shape>>();
    const uint32_t row = blockIdx.x / splits, split = blockIdx.x % splits;
    const int begin = static_cast<int>(static_cast<uint64_t>(rows.length) * split / splits);
    const int end = static_cast<int>(static_cast<uint64_t>(rows.length) * (split + 1) / splits);
    const FloatRow part(
        {rows.values + row * rows.stride, rows.addend, rows.sign, rows.first_index, 0}, begin, end);

    BlockSelect<Shape> select(shared.storage, out.k);
    int head = 0;
    if (start) {
        select.fill(out.k, [&](uint32_t i) { return start[size_t{row} * out.k + i]; });
    } else {
        head = min(end - begin, Shape::capacity);
        select.fill(head, [&](uint32_t i) { return part.key_at(begin + static_cast<int>(i)); });
    }
    if (begin + head < end) {
        stream_ahead(select, part.part(begin + head, end), shared.ring);
        select.cut();
    }
    write_result<Shape, sort_items>(select, out, blockIdx.x);
}

// A block selects one row of keys, (rows)(length): those of all splits of a matrix row.
template <class Shape, int sort_items>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    select_keys(const uint64_t* keys, uint32_t length, SelectOutput out) {
    auto& storage = *shared_memory<typename BlockSelect<Shape>::Storage>();
    const uint64_t* row = keys + size_t{blockIdx.x} * length;
    BlockSelect<Shape> select(storage, out.k);
    collect_keys(select, row, length);
    write_result<Shape, sort_items>(select, out, blockIdx.x);
}

template <class Shape, int sort_items>
void launch_floats(const FloatRows& rows, uint32_t row_count, uint32_t splits,
                   const uint64_t* start, const SelectOutput& out, cudaStream_t stream) {
    launch("select_floats", select_floats<Shape, sort_items>,
           {row_count * splits, Shape::threads, sizeof(StreamShared<Shape>), stream}, rows, splits,
           start, out);
}

template <class Shape, int sort_items>
void launch_keys(const uint64_t* keys, uint32_t row_count, uint32_t length, const SelectOutput& out,
                 cudaStream_t stream) {
    launch("select_keys", select_keys<Shape, sort_items>,
           {row_count, Shape::threads, sizeof(typename BlockSelect<Shape>::Storage), stream}, keys,
           length, out);
}

}  // namespace

void block_select(const SelectProblem& p, uint32_t splits, uint64_t* scratch, cudaStream_t stream) {
    const float sign = p.largest ? -1.0f : 1.0f;
    const FloatRows rows{p.values, p.stride, p.length, nullptr, sign, 0};
    const SelectOutput out{p.k, sign, p.out_values, p.out_indices, nullptr};
    if (splits == 1) {
        auto* select_all = &launch_floats<LargeSelect, 4>;
        if (p.k <= SmallSelect::threads)
            select_all = &launch_floats<SmallSelect, 1>;
        else if (p.k <= 1024)
            select_all = p.length <= SmallSelect::capacity ? &launch_floats<SmallSelect, 8>
                                                           : &launch_floats<MediumSelect, 4>;
        select_all(rows, p.rows, 1, nullptr, out, stream);
        return;
    }
    SelectOutput parts = out;
    parts.keys = scratch;
    auto* select_parts = &launch_floats<LargeSelect, 0>;
    if (p.k <= SmallSelect::threads)
        select_parts = &launch_floats<SmallSelect, 0>;
    else if (p.k <= 1024)
        select_parts = &launch_floats<MediumSelect, 0>;
    select_parts(rows, p.rows, splits, nullptr, parts, stream);
    merge_keys(p, scratch, splits * p.k, stream);
}

void merge_keys(const SelectProblem& p, const uint64_t* keys, uint32_t length,
                cudaStream_t stream) {
    const SelectOutput out{p.k, p.largest ? -1.0f : 1.0f, p.out_values, p.out_indices, nullptr};
    auto* merge = &launch_keys<LargeSelect, 4>;
    if (p.k <= SmallSelect::threads)
        merge = &launch_keys<SmallSelect, 1>;
    else if (p.k <= 1024)
        merge = &launch_keys<MediumSelect, 4>;
    merge(keys, p.rows, length, out, stream);
}

void select_running(const RunningSelect& p, cudaStream_t stream) {
    const FloatRows rows{p.values, p.stride, p.length, p.addend, 1.0f, p.first_index};
    const SelectOutput out{p.k, 1.0f, nullptr, nullptr, p.keys};
    auto* select_all = &launch_floats<LargeSelect, 0>;
    if (p.k <= SmallSelect::kept)
        select_all = &launch_floats<SmallSelect, 0>;
    else if (p.k <= MediumSelect::kept)
        select_all = &launch_floats<MediumSelect, 0>;
    select_all(rows, p.rows, 1, p.keys, out, stream);
}

}  // namespace pgwarp::gpu
