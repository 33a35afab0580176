#include "kernels/cuda/products/rescore.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/select/block_select.cuh"
#include "kernels/cuda/select/neighbor.cuh"
#include "kernels/cuda/select/select.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr IdKey no_neighbor{~0u, ~0u, ~0u};

// Keys with an index from here on belong to rows of earlier add() calls, which were re-scored and
// may be gone: only their distances remain, as bounds for new rows. no_key is one of them.
constexpr uint32_t first_stale = 0x80000000u;

// Called by a warp. Returns the distance of one row, computed from the vectors.
__device__ float exact_distance(const float* query, const float* row, uint32_t dims, bool l2) {
    float sum = 0;
    for (uint32_t d = lane_id(); d < dims; d += 32) {
        const float q = __ldg(query + d), x = __ldg(row + d);
        const float off = q - x;
        sum = l2 ? fmaf(off, off, sum) : fmaf(-q, x, sum);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(whole_warp, sum, distance);
    return sum;
}

__device__ IdKey id_key(float distance, uint64_t id) {
    return {ordered_bits(distance), static_cast<uint32_t>(id >> 32), static_cast<uint32_t>(id)};
}

// Merges the sorted `found` and the sorted `before`: an element's position in the result is its own
// position plus the number of elements of the other array that precede it.
__device__ void merge_sorted(const IdKey* found, uint32_t found_count, const Neighbor* before,
                             IdKey* before_keys, Neighbor* out, uint32_t k) {
    for (uint32_t i = threadIdx.x; i < k; i += blockDim.x)
        before_keys[i] = id_key(before[i].distance, before[i].id);
    __syncthreads();
    const auto put = [&](uint32_t at, const IdKey& key) {
        if (at < k) put_neighbor(out + at, key);
    };
    // Among equals, those of `before` come first.
    for (uint32_t i = threadIdx.x; i < found_count; i += blockDim.x) {
        uint32_t low = 0, high = k;
        while (low < high) {
            const uint32_t middle = (low + high) / 2;
            if (found[i] < before_keys[middle])
                high = middle;
            else
                low = middle + 1;
        }
        put(i + low, found[i]);
    }
    for (uint32_t i = threadIdx.x; i < k; i += blockDim.x) {
        uint32_t low = 0, high = found_count;
        while (low < high) {
            const uint32_t middle = (low + high) / 2;
            if (found[middle] < before_keys[i])
                low = middle + 1;
            else
                high = middle;
        }
        put(i + low, before_keys[i]);
    }
}

// Called by a warp. Returns whether no row outside the candidates can be nearer than `kth`. `last`
// is the largest approximate distance of a candidate. Errors up to 2^-15 of the distance are
// accepted.
__device__ bool proves_complete(const Rescoring& r, const float* query, float last, float kth) {
    uint32_t largest_row = 0;
    for (uint32_t i = lane_id(); i < r.completeness.tiles; i += 32)
        largest_row = max(largest_row, r.completeness.scales[1 + i]);
    largest_row = __reduce_max_sync(whole_warp, largest_row);
    float norm = 0;
    for (uint32_t d = lane_id(); d < r.dims; d += 32) {
        const float x = query[d] - (r.completeness.origin ? r.completeness.origin[d] : 0.0f);
        norm = fmaf(x, x, norm);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        norm += __shfl_xor_sync(whole_warp, norm, distance);
    const float largest_left = bits_float(r.completeness.scales[0]);
    const float largest_right = bits_float(largest_row);
    const float length = sqrtf(norm);
    if (!r.l2) {
        const float longest = sqrtf(static_cast<float>(r.dims)) * largest_right;
        const float error = product_error(length, longest, largest_left, largest_right, r.dims);
        return last - kth >= error || error <= 0x1p-15f * fabsf(kth);
    }
    if (kth <= 0) return true;
    // The norm of a nearer row is at most `reach`. The norms have the same error as the products.
    const float reach = length + sqrtf(kth);
    const float error =
        product_error(length + reach, length + reach, largest_left, largest_right, r.dims);
    return last + norm - kth >= error || error <= 0x1p-15f * kth;
}

// One block per query: re-scores the candidates, sorts them, and merges them with earlier results.
template <int threads, int items>
__global__ void __launch_bounds__(threads) rescore_block(Rescoring r) {
    IdKey* found = shared_memory<IdKey>();  // (threads * items), then (k) for merging
    __shared__ uint32_t found_count, last;
    __shared__ float kth;
    __shared__ bool unproven;
    const size_t place = blockIdx.x;
    const size_t query = r.numbers ? r.numbers[place] : place;
    const float* vector = r.queries + query * r.dims;
    if (threadIdx.x == 0) {
        found_count = last = 0;
        kth = bits_float(infinity_bits);
        unproven = false;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x / 32; i < threads * items; i += threads / 32) {
        const uint64_t key = i < r.candidates ? r.keys[place * r.candidates + i] : no_key;
        const bool is_row = key_index(key) < first_stale;
        IdKey scored = no_neighbor;
        if (is_row) {
            const uint32_t row = key_index(key);
            const float distance =
                exact_distance(vector, r.rows + size_t{row} * r.dims, r.dims, r.l2);
            scored = id_key(distance, r.ids ? r.ids[row] : row);
        }
        if (lane_id() == 0) {
            found[i] = scored;
            if (is_row) {
                atomicAdd(&found_count, 1u);
                atomicMax(&last, static_cast<uint32_t>(key >> 32));
            }
        }
    }
    __syncthreads();
    IdKey item[items];
#pragma unroll
    for (int i = 0; i < items; ++i) item[i] = found[i * threads + threadIdx.x];
    __syncthreads();
    block_sort<threads, items>(item, found);
    __syncthreads();
    Neighbor* out = r.nearest + query * r.k;
    const uint32_t count = min(found_count, r.k);
    if (r.completeness.queries && found_count < r.completeness.rows) {
#pragma unroll
        for (int i = 0; i < items; ++i)
            if (threadIdx.x * items + i == r.k - 1 && r.k <= found_count)
                kth = ordered_value(item[i].distance);
        __syncthreads();
        if (threadIdx.x < 32) {
            const float before = r.merge ? out[r.k - 1].distance : kth;
            // Fewer candidates than room for them means that some products were NaN.
            const bool sure = found_count == r.candidates &&
                              proves_complete(r, vector, ordered_value(last), fminf(kth, before));
            if (threadIdx.x == 0 && !sure) {
                r.completeness.queries[atomicAdd(r.completeness.count, 1u)] =
                    r.completeness.first + static_cast<uint32_t>(query);
                unproven = true;
            }
        }
        __syncthreads();
        if (unproven) return;  // earlier results stay unchanged
    }
    if (!r.merge) {
#pragma unroll
        for (int i = 0; i < items; ++i) {
            const uint32_t at = threadIdx.x * items + i;
            if (at < count) put_neighbor(out + at, item[i]);
        }
        for (uint32_t i = count + threadIdx.x; i < r.k; i += threads)
            put_neighbor(out + i, {ordered_bits(bits_float(infinity_bits)), ~0u, ~0u});
        return;
    }
#pragma unroll
    for (int i = 0; i < items; ++i) found[threadIdx.x * items + i] = item[i];
    __syncthreads();
    merge_sorted(found, count, out, found + threads * items, out, r.k);
}

template <int threads, int items>
void launch_rescore(const Rescoring& rescoring, size_t queries, cudaStream_t stream) {
    const size_t keys = threads * items + (rescoring.merge ? rescoring.k : 0);
    launch("rescore", rescore_block<threads, items>,
           {static_cast<unsigned>(queries), threads, keys * sizeof(IdKey), stream}, rescoring);
}

__global__ void set_keys(uint64_t* keys, size_t count) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += size_t{gridDim.x} * blockDim.x)
        keys[i] = no_key;
}

// Replaces each index by one that is unique in its row, so that keys stay distinct.
__global__ void make_stale(uint64_t* keys, size_t count, uint32_t candidates) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += size_t{gridDim.x} * blockDim.x)
        if (keys[i] != no_key)
            keys[i] = (keys[i] & ~uint64_t{0xffffffffu}) | (first_stale + i % candidates);
}

__global__ void no_neighbors(Neighbor* nearest, size_t count) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += size_t{gridDim.x} * blockDim.x)
        put_neighbor(nearest + i, {ordered_bits(bits_float(infinity_bits)), ~0u, ~0u});
}

}  // namespace

uint32_t candidates_to_rescore(uint32_t k) {
    return std::min(max_running_k, k + std::max(16u, k / 8));
}

void rescore(const Rescoring& rescoring, size_t queries, cudaStream_t stream) {
    auto* launch_it = &launch_rescore<512, 8>;
    if (rescoring.candidates <= 128)
        launch_it = &launch_rescore<128, 1>;
    else if (rescoring.candidates <= 1024)
        launch_it = &launch_rescore<256, 4>;
    launch_it(rescoring, queries, stream);
}

void clear_keys(uint64_t* keys, size_t count, cudaStream_t stream) {
    launch("set_keys", set_keys, {1056, 256, 0, stream}, keys, count);
}

void make_keys_stale(uint64_t* keys, size_t count, uint32_t candidates, cudaStream_t stream) {
    launch("make_stale", make_stale, {1056, 256, 0, stream}, keys, count, candidates);
}

void clear_neighbors(Neighbor* nearest, size_t count, cudaStream_t stream) {
    launch("no_neighbors", no_neighbors, {1056, 256, 0, stream}, nearest, count);
}

}  // namespace pgwarp::gpu
