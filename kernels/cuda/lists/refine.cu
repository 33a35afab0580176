#include "kernels/cuda/lists/refine.h"

#include "kernels/common/refined_distance.h"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/places.cuh"
#include "kernels/cuda/lists/query_tiles.cuh"
#include "kernels/cuda/lists/store_of.cuh"
#include "kernels/cuda/select/block_select.cuh"
#include "kernels/cuda/select/neighbor.cuh"

namespace pgwarp::gpu {

namespace {

constexpr uint32_t word_codes = 16;  // that a thread loads at once

struct RefineArguments {
    StoreView store;
    QueryView queries;
    CandidateView candidates;
    const float* given;  // (count)(dims)
    RefinedAnswers answers;
};

// What a warp adds up for a candidate.
struct Sums {
    int32_t product;  // of the query's values and the codes
    float term;       // of the list
};

// Shared memory behind that of the selection.
template <class Shape>
struct RefineShared {
    Place places[Shape::kept];
    Sums sums[Shape::kept];
    float leasts[Shape::kept];
    double norms[Shape::warps], roundings[Shape::warps];
    float greatest[Shape::warps];
    uint32_t limit;     // ordered bits of the least upper bound of the wanted rows
    uint32_t left_out;  // ordered bits
    uint32_t kept;
    // (dims, up to a multiple of 16): the query, rounded
    alignas(16) int16_t values[1];
};

template <class Shape>
constexpr size_t shared_bytes(uint32_t dims) {
    const size_t padded = (size_t{dims} + word_codes - 1) / word_codes * word_codes;
    return sizeof(typename BlockSelect<Shape>::Storage) + sizeof(RefineShared<Shape>) +
           padded * sizeof(int16_t);
}

// Called by the whole block. Rounds the query, as make_refinement_query() does.
template <class Shape>
__device__ RefinementQuery round_query(const RefineArguments& a, const float* vector,
                                       RefineShared<Shape>& shared) {
    const uint32_t dims = a.store.model.shape.dims;
    const uint32_t warp = threadIdx.x / 32;
    float greatest = 0;
    for (uint32_t d = threadIdx.x; d < dims; d += Shape::threads)
        greatest = fmaxf(greatest, fabsf(__ldg(vector + d)));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        greatest = fmaxf(greatest, __shfl_xor_sync(whole_warp, greatest, distance));
    if (lane_id() == 0) shared.greatest[warp] = greatest;
    __syncthreads();
    for (int w = 0; w < Shape::warps; ++w) greatest = fmaxf(greatest, shared.greatest[w]);

    const float scale = greatest / refinement_levels(dims);
    const float inverse = inverse_scale(scale);
    double norm = 0, rounding = 0;
    const uint32_t padded = (dims + word_codes - 1) / word_codes * word_codes;
    for (uint32_t d = threadIdx.x; d < padded; d += Shape::threads) {
        const float value = d < dims ? __ldg(vector + d) : 0.0f;
        const float rounded = rintf(value * inverse);
        shared.values[d] = static_cast<int16_t>(rounded);
        const double off = static_cast<double>(value) - static_cast<double>(scale) * rounded;
        norm += static_cast<double>(value) * value;
        rounding += off * off;
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        norm += __shfl_xor_sync(whole_warp, norm, distance);
        rounding += __shfl_xor_sync(whole_warp, rounding, distance);
    }
    if (lane_id() == 0) {
        shared.norms[warp] = norm;
        shared.roundings[warp] = rounding;
    }
    __syncthreads();
    norm = rounding = 0;
    for (int w = 0; w < Shape::warps; ++w) {
        norm += shared.norms[w];
        rounding += shared.roundings[w];
    }
    return {a.store.model.shape.metric,        dims, nullptr, scale, static_cast<float>(sqrt(norm)),
            static_cast<float>(sqrt(rounding))};
}

__device__ __forceinline__ int32_t add_four_codes(uint32_t values01, uint32_t values23,
                                                  uint32_t codes, int32_t sum) {
    sum = __dp2a_lo(static_cast<int>(values01), static_cast<int>(codes), sum);
    return __dp2a_hi(static_cast<int>(values23), static_cast<int>(codes), sum);
}

// Called by a warp, with a refinement and the centroid of its list.
__device__ Sums add_up(const RefineArguments& a, const float* vector, const int16_t* values,
                       const uint8_t* refinement, const float* centroid) {
    const uint32_t dims = a.store.model.shape.dims;
    const uint32_t words = (dims + word_codes - 1) / word_codes;
    const auto* codes = reinterpret_cast<const uint4*>(refinement + sizeof(RefinementHead));
    Sums sums{0, 0};
#pragma unroll 2
    for (uint32_t w = lane_id(); w < words; w += 32) {
        const uint4 code = __ldg(codes + w);
        const auto* value = reinterpret_cast<const uint4*>(values + w * word_codes);
        const uint4 low = value[0], high = value[1];
        sums.product = add_four_codes(low.x, low.y, code.x, sums.product);
        sums.product = add_four_codes(low.z, low.w, code.y, sums.product);
        sums.product = add_four_codes(high.x, high.y, code.z, sums.product);
        sums.product = add_four_codes(high.z, high.w, code.w, sums.product);
    }
    const bool l2 = has_norms(a.store.model.shape.metric);
#pragma unroll 8
    for (uint32_t d = lane_id(); d < dims; d += 32) {
        const float q = __ldg(vector + d), c = __ldg(centroid + d);
        sums.term = l2 ? fmaf(q - c, q - c, sums.term) : fmaf(-q, c, sums.term);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        sums.product += __shfl_xor_sync(whole_warp, sums.product, distance);
        sums.term += __shfl_xor_sync(whole_warp, sums.term, distance);
    }
    return sums;
}

// No distance of the row is less, and none is more: both rounded outwards.
__device__ RefinedRange range_of(const StoreView& store, const RefinementQuery& query,
                                 const Place& place, const Sums& sums) {
    const uint8_t* refinements = store.refinements[place.list];
    const float infinity = bits_float(infinity_bits);
    if (!refinements) return {-infinity, infinity};
    const uint8_t* refinement =
        refinements + size_t{place.position} * refinement_stride(query.dims);
    const float4 words = __ldg(reinterpret_cast<const float4*>(refinement));
    const RefinedDistance refined =
        refined_from_product(query, sums.term, {words.x, words.y, words.z, words.w}, sums.product);
    return {__fsub_rd(refined.distance, refined.error), __fadd_ru(refined.distance, refined.error)};
}

// One block per query. Sorts `items` * threads keys.
template <class Shape, int items, bool mixed>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks) refine(RefineArguments a) {
    using Storage = typename BlockSelect<Shape>::Storage;
    auto* storage = shared_memory<Storage>();
    auto& shared = *reinterpret_cast<RefineShared<Shape>*>(storage + 1);
    wait_for_kernels_before();
    const uint32_t query = blockIdx.x;
    const StoreOf<mixed> store = store_of<mixed>(a, query);
    const uint32_t dims = a.store.model.shape.dims;
    const float* vector = a.given + size_t{query} * dims;
    const uint32_t k = a.queries.wanted[query].k;
    const uint32_t wanted = a.queries.wanted[query].refined_k;
    const uint64_t* keys = a.candidates.keys + size_t{query} * a.candidates.room;
    const uint32_t length = min(a.candidates.counts[query], a.candidates.room);

    const RefinementQuery rounded = round_query(a, vector, shared);
    BlockSelect<Shape> select(*storage, k);
    collect_keys(select, keys, length);
    const uint32_t count = select.kept_count();
    for (uint32_t i = threadIdx.x; i < count; i += Shape::threads)
        shared.places[i] = place_of(store, key_index(select.kept()[i]));
    if (threadIdx.x == 0) {
        shared.limit = shared.left_out = ordered_bits(bits_float(infinity_bits));
        shared.kept = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x / 32; i < count; i += Shape::warps) {
        const Place place = shared.places[i];
        const uint8_t* refinements = store.refinements[place.list];
        if (!refinements) continue;  // the same for the whole warp
        const Sums sums = add_up(a, vector, shared.values,
                                 refinements + size_t{place.position} * refinement_stride(dims),
                                 store.given_centroids + size_t{place.list} * dims);
        if (lane_id() == 0) shared.sums[i] = sums;
    }
    __syncthreads();
    // One thread for each: the bounds are in double.
    uint64_t item[items];
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const uint32_t at = i * Shape::threads + threadIdx.x;
        item[i] = no_key;
        if (at >= count) continue;
        const RefinedRange range = range_of(store, rounded, shared.places[at], shared.sums[at]);
        shared.leasts[at] = range.least;
        item[i] = make_key(range.most, at);
    }
    // The keys of the selection are not needed any more.
    static_assert(Shape::threads * items <= Shape::capacity);
    block_sort<Shape::threads, items>(item, storage->keys);
#pragma unroll
    for (int i = 0; i < items; ++i)
        if (threadIdx.x * items + i == wanted - 1 && wanted <= count)
            shared.limit = static_cast<uint32_t>(item[i] >> 32);
    __syncthreads();
    const float limit = ordered_value(shared.limit);
    Neighbor* out = a.answers.found + query * a.answers.stride;
    for (uint32_t i = threadIdx.x; i < count; i += Shape::threads) {
        const float least = shared.leasts[i];
        if (!(least <= limit)) {
            atomicMin(&shared.left_out, ordered_bits(least));
            continue;
        }
        const Place place = shared.places[i];
        const uint64_t tid = tid_at(store.lists[place.list], place.position);
        put_neighbor(
            out + atomicAdd(&shared.kept, 1u),
            {ordered_bits(least), static_cast<uint32_t>(tid >> 32), static_cast<uint32_t>(tid)});
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        a.answers.found_counts[query] = shared.kept;
        a.answers.left_out[query] = ordered_value(shared.left_out);
    }
}

// Where a block has no shared memory to score as many: names all, with no bound, so that they are
// visited. One block per query.
template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks) name_all(RefineArguments a) {
    using Storage = typename BlockSelect<Shape>::Storage;
    auto* storage = shared_memory<Storage>();
    wait_for_kernels_before();
    const uint32_t query = blockIdx.x;
    const uint64_t* keys = a.candidates.keys + size_t{query} * a.candidates.room;
    BlockSelect<Shape> select(*storage, a.queries.wanted[query].k);
    collect_keys(select, keys, min(a.candidates.counts[query], a.candidates.room));
    const uint32_t count = select.kept_count();
    const float infinity = bits_float(infinity_bits);
    Neighbor* out = a.answers.found + query * a.answers.stride;
    for (uint32_t i = threadIdx.x; i < count; i += Shape::threads) {
        const Place place = place_of(a.store, key_index(select.kept()[i]));
        const uint64_t tid = tid_at(a.store.lists[place.list], place.position);
        put_neighbor(out + i, {ordered_bits(-infinity), static_cast<uint32_t>(tid >> 32),
                               static_cast<uint32_t>(tid)});
    }
    if (threadIdx.x == 0) {
        a.answers.found_counts[query] = count;
        a.answers.left_out[query] = infinity;
    }
}

template <class Shape, int items, bool mixed = false>
void launch_refine(const RefineArguments& arguments, Turn turn) {
    static_assert(Shape::kept <= Shape::threads * items);
    launch("refine", refine<Shape, items, mixed>,
           {arguments.queries.count, Shape::threads,
            shared_bytes<Shape>(arguments.store.model.shape.dims), turn},
           arguments);
}

}  // namespace

void refine_search(const StoreView& store, const QueryView& queries,
                   const CandidateView& candidates, const float* given,
                   const RefinedAnswers& answers, const Context& context, Turn turn) {
    const RefineArguments arguments{store, queries, candidates, given, answers};
    const auto fits = [&](size_t bytes) { return bytes <= context.block_shared_bytes; };
    const uint32_t dims = store.model.shape.dims;
    static_assert(fast_list_k <= WideSelect::kept);
    if (queries.stores)
        launch_refine<WideSelect, 1, true>(arguments, turn);
    else if (queries.k <= WideSelect::kept)
        launch_refine<WideSelect, 1>(arguments, turn);
    else if (fits(shared_bytes<LargeSelect>(dims)))
        launch_refine<LargeSelect, 8>(arguments, turn);
    else if (queries.k <= MediumSelect::kept && fits(shared_bytes<MediumSelect>(dims)))
        launch_refine<MediumSelect, 8>(arguments, turn);
    else
        launch(
            "name_all", name_all<LargeSelect>,
            {queries.count, LargeSelect::threads, sizeof(BlockSelect<LargeSelect>::Storage), turn},
            arguments);
}

}  // namespace pgwarp::gpu
