#include "kernels/cuda/lists/finish.h"

#include "kernels/cuda/select/block_select.cuh"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/places.cuh"
#include "kernels/cuda/lists/query_tiles.cuh"
#include "kernels/cuda/lists/store_of.cuh"
#include "kernels/cuda/select/neighbor.cuh"

namespace pgwarp::gpu {

namespace {

// What the kernels need of a FilterView.
struct FilteredOutput {
    FilteredCounts* counts;  // null: the queries are not filtered
    SearchedLists* searched;
};

struct FinishArguments {
    StoreView store;
    QueryView queries;
    CandidateView candidates;
    AnswerView answers;
    FilteredOutput filtered;
};

// Dimension d of the vector that an entry's code decodes to.
__device__ float decoded(const StoreView& store, const uint8_t* tile, uint32_t entry, uint32_t d) {
    const DeviceModel& model = store.model;
    if (model.shape.search_rounds > 0) {
        float sum = 0;
        for (uint32_t j = 0; j < model.shape.m; ++j) {
            const uint32_t word = j * codewords + tile[store.layout.place(entry, j)];
            sum += __ldg(store.codewords + size_t{word} * model.shape.dims + d);
        }
        return sum;
    }
    const uint32_t piece = __ldg(model.piece_of + d);
    const uint32_t begin = __ldg(model.piece_begins + piece);
    const uint32_t dims = __ldg(model.piece_begins + piece + 1) - begin;
    const uint32_t code = tile[store.layout.place(entry, piece)];
    return __ldg(store.codewords + size_t{begin} * codewords + code * dims + (d - begin));
}

// Called by a warp. Returns the distance as quantizer.h defines it, in float32, from the codewords.
__device__ float score(const StoreView& store, const float* vector, const Place& place) {
    const DeviceModel& model = store.model;
    const DeviceList& list = store.lists[place.list];
    const uint8_t* tile =
        list.tiles + size_t{place.position / tile_entries} * store.layout.tile_bytes();
    const float* centroid = model.centroids + size_t{place.list} * model.shape.dims;
    const bool l2 = has_norms(model.shape.metric);
    float sum = 0;
    for (uint32_t d = lane_id(); d < model.shape.dims; d += 32) {
        const float w = decoded(store, tile, place.position % tile_entries, d);
        const float q = __ldg(vector + d), c = __ldg(centroid + d);
        sum = l2 ? fmaf(q - c, q - c, fmaf(-2 * q, w, sum)) : fmaf(-q, c + w, sum);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(whole_warp, sum, distance);
    return sum + list.offsets[place.position];
}

// NaN, from sums that overflowed, becomes infinity, as on the CPU.
__device__ uint32_t ordered_score(float distance) {
    return ordered_bits(distance == distance ? distance : bits_float(infinity_bits));
}

__device__ uint64_t tid_of(const StoreView& store, const Place& place) {
    return tid_at(store.lists[place.list], place.position);
}

// A candidate's TID with the distance from the scan.
__device__ IdKey final_key(const StoreView& store, uint64_t key) {
    if (key == no_key) return {~0u, ~0u, ~0u};
    const uint64_t tid = tid_of(store, place_of(store, key_index(key)));
    return {static_cast<uint32_t>(key >> 32), static_cast<uint32_t>(tid >> 32),
            static_cast<uint32_t>(tid)};
}

// Called by the whole block with `count` sorted keys of a filtered query. Returns how many of them
// are results.
//
// The scan has selected by (distance, number of the entry), the results are by (distance, TID). If
// it has dropped entries, some that are as far as the last one it selected may be among them, so
// entries as far as that are no results: a search that resumes finds all of them.
template <int items>
__device__ uint32_t filtered_results(const FinishArguments& a, uint32_t query,
                                     const IdKey (&item)[items], uint32_t count) {
    __shared__ uint32_t results, limit;
    const ListQuery wanted = a.queries.wanted[query];
    const uint32_t beyond = a.filtered.counts[query].beyond, selected = list_candidates(wanted.k);
    if (threadIdx.x == 0) results = min(wanted.k, count);
    const uint32_t first = threadIdx.x * items;
    if (beyond > selected) {  // the same for the whole block
#pragma unroll
        for (int i = 0; i < items; ++i)
            if (first + i == selected - 1) limit = item[i].distance;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < items; ++i)
            if (first + i < count && item[i].distance >= limit) atomicMin(&results, first + i);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        a.filtered.searched[query] = {a.filtered.counts[query].searched.passed, beyond > results};
    return results;
}

// One block per query. Sorts `items` * threads keys.
template <class Shape, int items, Distances distances, bool mixed>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks) finish(FinishArguments a) {
    using Storage = typename BlockSelect<Shape>::Storage;
    auto* storage = shared_memory<Storage>();
    auto* found = reinterpret_cast<IdKey*>(storage + 1);                      // (threads * items)
    auto* places = reinterpret_cast<Place*>(found + Shape::threads * items);  // (kept)
    wait_for_kernels_before();
    const uint32_t query = blockIdx.x;
    const StoreOf<mixed> store = store_of<mixed>(a, query);
    const float* vector = a.queries.vectors + size_t{query} * a.store.model.shape.dims;
    const uint32_t k = a.queries.wanted[query].k;
    const uint64_t* keys = a.candidates.keys + size_t{query} * a.candidates.room;
    const uint32_t length = min(a.candidates.counts[query], a.candidates.room);

    uint32_t count = 0;
    if (distances == Distances::final && length <= Shape::threads * items) {
        // The sort takes all candidates: no need to select.
        for (uint32_t i = threadIdx.x; i < Shape::threads * items; i += Shape::threads)
            found[i] = final_key(store, i < length ? keys[i] : no_key);
        for (uint32_t i = threadIdx.x; i - threadIdx.x < length; i += Shape::threads)
            count += __syncthreads_count(i < length && keys[i] != no_key);
    } else {
        BlockSelect<Shape> select(*storage, list_candidates(k));
        collect_keys(select, keys, length);
        count = select.kept_count();
        for (uint32_t i = threadIdx.x; i < Shape::threads * items; i += Shape::threads) {
            const uint64_t key = i < count ? select.kept()[i] : no_key;
            found[i] = final_key(store, key);
            if (distances == Distances::rough && i < count)
                places[i] = place_of(store, key_index(key));
        }
        __syncthreads();
    }
    if (distances == Distances::rough) {
        for (uint32_t i = threadIdx.x / 32; i < count; i += Shape::warps) {
            const float distance = score(store, vector, places[i]);
            if (lane_id() == 0) found[i].distance = ordered_score(distance);
        }
    }
    __syncthreads();
    IdKey item[items];
#pragma unroll
    for (int i = 0; i < items; ++i) item[i] = found[i * Shape::threads + threadIdx.x];
    __syncthreads();
    block_sort<Shape::threads, items>(item, found);
    uint32_t results = min(k, count);
    if (distances == Distances::final && a.filtered.counts)
        results = filtered_results(a, query, item, count);
    Neighbor* out = a.answers.found + query * a.answers.stride;
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const uint32_t at = threadIdx.x * items + i;
        if (at < results) put_neighbor(out + at, item[i]);
    }
    if (threadIdx.x == 0) a.answers.found_counts[query] = results;
}

template <class Shape, int items, Distances distances, bool mixed = false>
void launch_finish(const FinishArguments& arguments, Turn turn) {
    const size_t shared = sizeof(typename BlockSelect<Shape>::Storage) +
                          Shape::threads * items * sizeof(IdKey) + Shape::kept * sizeof(Place);
    launch("finish", finish<Shape, items, distances, mixed>,
           {arguments.queries.count, Shape::threads, shared, turn}, arguments);
}

// One warp per query: no barriers, and all state in registers. For large batches, where other warps
// hide the latency of memory; up to 32 * registers candidates.
constexpr unsigned block_warps = 4;

template <int registers, int queue>
__global__ void __launch_bounds__(block_warps * 32) finish_by_warp(FinishArguments a) {
    wait_for_kernels_before();
    const uint32_t query = blockIdx.x * block_warps + threadIdx.x / 32;
    if (query >= a.queries.count) return;
    const float* vector = a.queries.vectors + size_t{query} * a.store.model.shape.dims;
    const uint32_t k = a.queries.wanted[query].k, candidates = list_candidates(k);
    const uint32_t length = min(a.candidates.counts[query], a.candidates.room);
    const uint64_t* keys = a.candidates.keys + size_t{query} * a.candidates.room;

    WarpSelect<registers, queue> select(candidates);
    uint64_t next = lane_id() < length ? keys[lane_id()] : no_key;
#pragma unroll 1
    for (uint32_t at = lane_id();; at += 32) {
        select.add(next);
        next = at + 32 < length ? keys[at + 32] : no_key;
        const bool last = at - lane_id() + 32 >= length;
        if (select.full() || last) select.merge();
        if (last) break;
    }
    IdKey item[registers];
    Place place[registers];
    uint32_t count = 0;
#pragma unroll
    for (int r = 0; r < registers; ++r) {
        const uint64_t key = r * 32 + lane_id() < candidates ? select.key(r) : no_key;
        const bool real = key != no_key;
        count += __popc(__ballot_sync(whole_warp, real));
        place[r] = real ? place_of(a.store, key_index(key)) : Place{0, 0};
        const uint64_t tid = real ? tid_of(a.store, place[r]) : ~uint64_t{0};
        item[r] = {~0u, static_cast<uint32_t>(tid >> 32), static_cast<uint32_t>(tid)};
    }
#pragma unroll
    for (int r = 0; r < registers; ++r) {
        const int here = static_cast<int>(min(32u, count - min(count, r * 32u)));
#pragma unroll 2
        for (int i = 0; i < here; ++i) {
            const Place one{__shfl_sync(whole_warp, place[r].list, i),
                            __shfl_sync(whole_warp, place[r].position, i)};
            const float distance = score(a.store, vector, one);
            if (lane_id() == i) item[r].distance = ordered_score(distance);
        }
    }
    block_sort<32, registers>(item, static_cast<IdKey*>(nullptr));
    Neighbor* out = a.answers.found + query * a.answers.stride;
    const uint32_t results = min(k, count);
#pragma unroll
    for (int r = 0; r < registers; ++r) {
        const uint32_t at = lane_id() * registers + r;
        if (at < results) put_neighbor(out + at, item[r]);
    }
    if (lane_id() == 0) a.answers.found_counts[query] = results;
}

template <int registers, int queue>
void launch_warps(const FinishArguments& arguments, Turn turn) {
    launch("finish_by_warp", finish_by_warp<registers, queue>,
           {divide_up(arguments.queries.count, block_warps), block_warps * 32, 0, turn}, arguments);
}

// From this number of queries on, one warp per query keeps the device busy.
constexpr uint32_t least_by_warp = 1024;

// Candidates with final distances.
void finish_final(const FinishArguments& arguments, Turn turn) {
    const uint32_t most = list_candidates(arguments.queries.k);
    auto* finish_all = &launch_finish<LargeSelect, 8, Distances::final>;
    static_assert(list_candidates(fast_list_k) <= MediumSelect::threads);
    if (arguments.queries.stores)
        finish_all = &launch_finish<MediumSelect, 1, Distances::final, true>;
    else if (most <= MediumSelect::threads)
        finish_all = &launch_finish<MediumSelect, 1, Distances::final>;
    else if (most <= MediumSelect::kept)
        finish_all = &launch_finish<MediumSelect, 8, Distances::final>;
    finish_all(arguments, turn);
}

}  // namespace

void finish_search(const StoreView& store, const QueryView& queries,
                   const CandidateView& candidates, Distances distances, const AnswerView& answers,
                   Turn turn) {
    const FinishArguments arguments{store, queries, candidates, answers, {}};
    if (distances == Distances::final) {
        finish_final(arguments, turn);
        return;
    }
    const uint32_t most = list_candidates(queries.k);
    const bool many = queries.count >= least_by_warp;
    auto* finish_all = &launch_finish<LargeSelect, 8, Distances::rough>;
    if (many && most <= 32)
        finish_all = &launch_warps<1, 2>;
    else if (many && most <= 128)
        finish_all = &launch_warps<4, 3>;
    else if (most <= MediumSelect::threads)
        finish_all = &launch_finish<MediumSelect, 1, Distances::rough>;
    else if (most <= MediumSelect::kept)
        finish_all = &launch_finish<MediumSelect, 8, Distances::rough>;
    finish_all(arguments, turn);
}

void finish_filtered(const StoreView& store, const QueryView& queries,
                     const CandidateView& candidates, const FilterView& filter,
                     const AnswerView& answers, cudaStream_t stream) {
    finish_final({store, queries, candidates, answers, {filter.counts, filter.searched}}, stream);
}

}  // namespace pgwarp::gpu
