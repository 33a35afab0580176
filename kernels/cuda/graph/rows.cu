#include "kernels/cuda/graph/rows.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/train/sums.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;
constexpr unsigned max_blocks = 1056;
constexpr size_t chunk_bytes = size_t{64} << 20;

__global__ void __launch_bounds__(threads)
    pad_rows(const float* from, size_t count, uint32_t dims, uint32_t stride, float* to) {
    for (size_t i = size_t{blockIdx.x} * threads + threadIdx.x; i < count * stride;
         i += size_t{gridDim.x} * threads) {
        const size_t row = i / stride;
        const auto d = static_cast<uint32_t>(i % stride);
        to[i] = d < dims ? from[row * dims + d] : 0.0f;
    }
}

// In memory an edge has its distance first, a key its row.
__global__ void __launch_bounds__(threads) turn_edges(uint64_t* edges, size_t count, bool to_keys) {
    for (size_t i = size_t{blockIdx.x} * threads + threadIdx.x; i < count;
         i += size_t{gridDim.x} * threads) {
        const uint64_t x = edges[i];
        if (to_keys) {
            edges[i] =
                make_key(__uint_as_float(static_cast<uint32_t>(x)), static_cast<uint32_t>(x >> 32));
        } else {
            edges[i] = static_cast<uint64_t>(edge_row(x)) << 32 | __float_as_uint(key_value(x));
        }
    }
}

__global__ void __launch_bounds__(threads) copy(const uint64_t* from, uint32_t from_degree,
                                                size_t count, uint64_t* to, uint32_t to_degree) {
    for (size_t i = size_t{blockIdx.x} * threads + threadIdx.x; i < count * to_degree;
         i += size_t{gridDim.x} * threads) {
        const size_t row = i / to_degree, place = i % to_degree;
        to[i] = place < from_degree ? from[row * from_degree + place] : no_edge();
    }
}

__global__ void __launch_bounds__(threads)
    take_distances(const uint64_t* lists, uint32_t degree, uint32_t place, size_t count,
                   float* distances) {
    for (size_t i = size_t{blockIdx.x} * threads + threadIdx.x; i < count;
         i += size_t{gridDim.x} * threads)
        distances[i] = key_value(lists[i * degree + place]);
}

__global__ void __launch_bounds__(threads) fill(uint64_t* keys, size_t count, uint64_t key) {
    for (size_t i = size_t{blockIdx.x} * threads + threadIdx.x; i < count;
         i += size_t{gridDim.x} * threads)
        keys[i] = key;
}

unsigned blocks_for(size_t count) {
    return static_cast<unsigned>(std::min<size_t>(divide_up(count, size_t{threads}), max_blocks));
}

}  // namespace

DeviceGraphRows::DeviceGraphRows(const Context& context, Uploader& uploader, cudaStream_t stream,
                                 const GraphRows& rows) {
    const auto stride = static_cast<uint32_t>(row_bytes(rows.dims) / sizeof(float));
    rows_ = Buffer<float>(context.memory, rows.count * stride);
    view_ = {rows_.data(), static_cast<uint32_t>(rows.count), rows.dims, stride, rows.metric};
    const FinishStream finish(stream);  // waits also when an exception leaves the scope
    const size_t chunk_rows = std::max<size_t>(chunk_bytes / row_bytes(rows.dims), 1);
    if (stride == rows.dims) {
        for (size_t first = 0; first < rows.count; first += chunk_rows) {
            context.check_interrupt();
            const size_t count = std::min(chunk_rows, rows.count - first);
            uploader.upload(rows_ + first * stride, rows.row(first), count * stride, stream);
        }
    } else {
        ChunkedRows chunks(context.memory, uploader, rows.rows, rows.count, rows.dims, chunk_rows);
        const FinishStream finish_chunks(stream);
        for (size_t i = 0; i < chunks.chunks(); ++i) {
            context.check_interrupt();
            const float* from = chunks.get(i, stream);
            launch("pad_rows", pad_rows, {blocks_for(chunks.rows(i) * stride), threads, 0, stream},
                   from, chunks.rows(i), rows.dims, stride, rows_ + chunks.first(i) * stride);
            chunks.release(i, stream);
        }
    }
    const float largest = largest_magnitude(context, rows_.data(), rows.count * stride, stream);
    // Four times the largest possible squared distance, 4 * dims * largest^2, must be below 2^127.
    if (!(largest * largest * static_cast<float>(rows.dims) < 0x1p123f))
        refuse("vectors are too long for a device");
}

void edges_to_keys(uint64_t* edges, size_t count, cudaStream_t stream) {
    launch("turn_edges", turn_edges, {blocks_for(count), threads, 0, stream}, edges, count, true);
}

void keys_to_edges(uint64_t* keys, size_t count, cudaStream_t stream) {
    launch("turn_edges", turn_edges, {blocks_for(count), threads, 0, stream}, keys, count, false);
}

void copy_lists(const uint64_t* from, uint32_t from_degree, size_t count, uint64_t* to,
                uint32_t to_degree, cudaStream_t stream) {
    launch("copy", copy, {blocks_for(count * to_degree), threads, 0, stream}, from, from_degree,
           count, to, to_degree);
}

void place_distances(const uint64_t* lists, uint32_t degree, uint32_t place, size_t count,
                     float* distances, cudaStream_t stream) {
    launch("take_distances", take_distances, {blocks_for(count), threads, 0, stream}, lists, degree,
           place, count, distances);
}

void fill_keys(uint64_t* keys, size_t count, uint64_t key, cudaStream_t stream) {
    launch("fill", fill, {blocks_for(count), threads, 0, stream}, keys, count, key);
}

}  // namespace pgwarp::gpu
