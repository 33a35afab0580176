#include "kernels/cuda/graph/proposals.h"

#include "kernels/cuda/select/block_sort.cuh"
#include "kernels/cuda/graph/distance.cuh"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/base/stream.h"

#include <algorithm>
#include <bit>

namespace pgwarp::gpu {

namespace {

uint32_t place_bits_of(uint32_t degree) {
    return static_cast<uint32_t>(std::countr_zero(std::clamp(std::bit_ceil(degree), 64u, 512u)));
}
uint32_t member_bits_of(uint32_t degree) {
    return static_cast<uint32_t>(std::countr_zero(std::bit_ceil(32 * std::max(degree, 2u))));
}

struct ListUpdate {
    uint64_t* keys;
    unsigned long long* places;
    float* bounds;
    uint32_t* members;
    size_t count;
    uint32_t degree;
    uint32_t place_bits;
    uint32_t member_bits;
    bool only_look;  // no proposals: compute bounds and members of sorted lists only
    unsigned long long* changes;
};

constexpr unsigned min_threads = 128;

// The threads that update one row together: a warp or a block.
template <int threads>
struct Team {
    static constexpr int rows = threads == 32 ? min_threads / 32 : 1;  // per block
    static __device__ __forceinline__ void sync() {
        if constexpr (threads == 32)
            __syncwarp();
        else
            __syncthreads();
    }
    static __device__ __forceinline__ bool any(bool mine) {
        if constexpr (threads == 32)
            return __any_sync(whole_warp, mine);
        else
            return __syncthreads_or(mine);
    }
};

// `threads` threads per row. Each thread holds `items` keys, of the list or of proposals.
template <int threads, int items>
__global__ void __launch_bounds__(threads == 32 ? min_threads : threads)
    update_lists(ListUpdate u) {
    using Group = Team<threads>;
    const uint32_t thread = threadIdx.x % threads;
    const size_t row = size_t{blockIdx.x} * Group::rows + threadIdx.x / threads;
    if (row >= u.count) return;
    const uint32_t place_count = 1u << u.place_bits, words = 1u << (u.member_bits - 5);
    // Shared memory: keys to exchange, for teams of several warps; then for each row, the row
    // numbers of its list and its member bits.
    uint64_t* exchange = shared_memory<uint64_t>();
    uint32_t* ids = reinterpret_cast<uint32_t*>(exchange + (threads == 32 ? 0 : threads * items)) +
                    (threadIdx.x / threads) * (u.degree + words);
    uint32_t* bits = ids + u.degree;
    uint64_t* list = u.keys + row * u.degree;
    unsigned long long* places = u.places + (row << u.place_bits);

    uint64_t item[items];
    bool found = false;
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const uint32_t at = i * threads + thread;
        item[i] = no_key;
        if (at < u.degree) {
            item[i] = list[at];
            ids[at] = edge_row(item[i]);
        } else if (!u.only_look && at - u.degree < place_count) {
            item[i] = places[at - u.degree];
            if (item[i] != no_key) {
                places[at - u.degree] = no_key;
                found = true;
            }
        }
    }
    if (!Group::any(found) && !u.only_look) return;
    Group::sync();

    // A proposal that the list already contains is dropped.
    uint32_t mine = 0;  // bits: which items are proposals
    if (!u.only_look) {
#pragma unroll
        for (int i = 0; i < items; ++i) {
            if (i * threads + thread < u.degree || item[i] == no_key) continue;
            const uint32_t id = edge_row(item[i]);
            bool known = false;
            for (uint32_t j = 0; j < u.degree; ++j) known |= ids[j] == id;
            if (known)
                item[i] = no_key;
            else
                mine |= 1u << i;
        }
        Group::sync();
        // Proposals up to the final last key of the list are new edges.
        uint64_t before[items];
#pragma unroll
        for (int i = 0; i < items; ++i) before[i] = item[i];
        block_sort<threads, items>(item, exchange);
        Group::sync();
#pragma unroll
        for (int i = 0; i < items; ++i) {
            const uint32_t at = thread * items + i;
            if (at >= u.degree) continue;
            // Never no_key: the list alone has `degree` keys, its empty places are no_edge.
            list[at] = item[i];
            ids[at] = edge_row(item[i]);
            if (at == u.degree - 1) {
                bits[0] = static_cast<uint32_t>(item[i]);
                bits[1] = static_cast<uint32_t>(item[i] >> 32);
                u.bounds[row] = key_value(item[i]);
            }
        }
        Group::sync();
        const uint64_t bound = static_cast<uint64_t>(bits[1]) << 32 | bits[0];
        Group::sync();
        uint32_t changed = 0;
#pragma unroll
        for (int i = 0; i < items; ++i) changed += (mine >> i & 1) && before[i] <= bound;
        changed = __reduce_add_sync(whole_warp, changed);
        if (lane_id() == 0 && changed > 0) atomicAdd(u.changes, changed);
    } else if (thread == 0) {
        u.bounds[row] = key_value(list[u.degree - 1]);
    }

    for (uint32_t i = thread; i < words; i += threads) bits[i] = 0;
    Group::sync();
    for (uint32_t i = thread; i < u.degree; i += threads) {
        if (ids[i] == no_row) continue;
#pragma unroll
        for (uint32_t which = 0; which < member_hashes; ++which) {
            const uint32_t bit =
                member_bit(static_cast<uint32_t>(row), ids[i], which, u.member_bits);
            atomicOr(bits + bit / 32, 1u << bit % 32);
        }
    }
    Group::sync();
    for (uint32_t i = thread; i < words; i += threads) u.members[row * words + i] = bits[i];
}

template <int threads, int items>
void launch_update(const ListUpdate& update, cudaStream_t stream) {
    constexpr unsigned rows = Team<threads>::rows;
    const size_t shared =
        (threads == 32 ? 0 : threads * items * sizeof(uint64_t)) +
        rows * (update.degree + (size_t{1} << (update.member_bits - 5))) * sizeof(uint32_t);
    launch("update_lists", update_lists<threads, items>,
           {static_cast<unsigned>(divide_up(update.count, size_t{rows})),
            threads == 32 ? min_threads : threads, shared, stream},
           update);
}

struct Finish {
    GraphView view;
    uint64_t* keys;
    uint32_t degree;
};

template <int threads, int items>
__global__ void __launch_bounds__(threads == 32 ? min_threads : threads) finish_lists(Finish f) {
    using Group = Team<threads>;
    const uint32_t thread = threadIdx.x % threads;
    const size_t row = size_t{blockIdx.x} * Group::rows + threadIdx.x / threads;
    if (row >= f.view.count) return;
    // Keys of the list; teams of several warps also sort through this memory.
    uint64_t* all = shared_memory<uint64_t>() + (threadIdx.x / threads) * threads * items;
    uint64_t* list = f.keys + row * f.degree;
    for (uint32_t i = thread / 32; i < threads * items; i += threads / 32) {
        const uint64_t key = i < f.degree ? list[i] : no_key;
        uint64_t exact = key;
        if (i < f.degree && edge_row(key) != no_row) {
            const float distance = row_distance(f.view, static_cast<uint32_t>(row), edge_row(key));
            exact = make_key(fminf(distance, 0x1.fffffep127f), edge_row(key));
        }
        if (lane_id() == 0) all[i] = exact;
    }
    Group::sync();
    uint64_t item[items];
#pragma unroll
    for (int i = 0; i < items; ++i) item[i] = all[i * threads + thread];
    Group::sync();
    block_sort<threads, items>(item, all);
#pragma unroll
    for (int i = 0; i < items; ++i)
        if (thread * items + i < f.degree) list[thread * items + i] = item[i];
}

template <int threads, int items>
void launch_finish(const Finish& finish, cudaStream_t stream) {
    constexpr unsigned rows = Team<threads>::rows;
    launch("finish_lists", finish_lists<threads, items>,
           {divide_up(finish.view.count, rows), threads == 32 ? min_threads : threads,
            rows * threads * items * sizeof(uint64_t), stream},
           finish);
}

template <class Work>
struct Instance {
    uint32_t keys;  // at most
    void (*launch)(const Work&, cudaStream_t);
};
constexpr Instance<ListUpdate> updates[] = {
    {128, launch_update<32, 4>},   {256, launch_update<32, 8>},   {512, launch_update<128, 4>},
    {1024, launch_update<128, 8>}, {2048, launch_update<256, 8>},
};
constexpr Instance<Finish> finishes[] = {
    {32, launch_finish<32, 1>},   {64, launch_finish<32, 2>},    {128, launch_finish<32, 4>},
    {512, launch_finish<128, 4>}, {2048, launch_finish<256, 8>},
};
static_assert(max_graph_degree + 512 <= 2048);

}  // namespace

GraphLists::GraphLists(const Context& context, Uploader& uploader, cudaStream_t stream,
                       size_t count, uint32_t degree, const Edge* edges, uint32_t edges_degree)
    : count_(count),
      degree_(degree),
      keys_(context.memory, count * degree),
      places_(context.memory, count << place_bits_of(degree)),
      bounds_(context.memory, count),
      members_(context.memory, count << (member_bits_of(degree) - 5)),
      changes_(context.memory, 1) {
    const FinishStream finish(stream);  // waits also when an exception leaves the scope
    if (edges) {
        // Uses the memory of proposals, of which there are none yet.
        const size_t room = places_.size();
        Buffer<uint64_t> more(context.memory,
                              count * edges_degree > room ? count * edges_degree : 0);
        uint64_t* given = more.size() ? more.data() : reinterpret_cast<uint64_t*>(places_.data());
        const FinishStream finish_given(stream);
        uploader.upload(given, reinterpret_cast<const uint64_t*>(edges), count * edges_degree,
                        stream);
        edges_to_keys(given, count * edges_degree, stream);
        copy_lists(given, edges_degree, count, keys_.data(), degree, stream);
    } else {
        fill_keys(keys_.data(), count * degree, no_edge(), stream);
    }
    check(cudaMemsetAsync(places_.data(), 0xff, places_.size() * sizeof(uint64_t), stream),
          "cudaMemsetAsync");
    update(true, stream);
}

size_t GraphLists::row_bytes(uint32_t degree) {
    return degree * sizeof(uint64_t) + (sizeof(uint64_t) << place_bits_of(degree)) + sizeof(float) +
           (sizeof(uint32_t) << (member_bits_of(degree) - 5));
}

ProposalView GraphLists::view(uint32_t salt) const {
    return {places_.data(),         bounds_.data(),          members_.data(),
            place_bits_of(degree_), member_bits_of(degree_), salt};
}

void GraphLists::update(bool only_look, cudaStream_t stream) {
    const ListUpdate work{
        keys_.data(), places_.data(), bounds_.data(),         members_.data(),
        count_,       degree_,        place_bits_of(degree_), member_bits_of(degree_),
        only_look,    changes_.data()};
    const uint32_t keys = degree_ + (1u << place_bits_of(degree_));
    for (const Instance<ListUpdate>& instance : updates) {
        if (keys > instance.keys) continue;
        instance.launch(work, stream);
        return;
    }
    refuse("lists are too long for a device");
}

uint64_t GraphLists::merge_proposals(cudaStream_t stream) {
    clear_async(changes_.data(), 1, stream);
    update(false, stream);
    unsigned long long changes = 0;
    copy_async(&changes, static_cast<const unsigned long long*>(changes_.data()), 1, stream);
    check(cudaStreamSynchronize(stream), "merge_proposals");
    return changes;
}

uint64_t* GraphLists::cut(uint32_t degree, cudaStream_t stream) {
    if (degree == degree_) return keys_.data();
    auto* room = reinterpret_cast<uint64_t*>(places_.data());
    copy_lists(keys_.data(), degree_, count_, room, degree, stream);
    return room;
}

void GraphLists::finish(const GraphView& view, cudaStream_t stream) {
    const Finish work{view, keys_.data(), degree_};
    for (const Instance<Finish>& instance : finishes) {
        if (degree_ > instance.keys) continue;
        instance.launch(work, stream);
        return;
    }
}

}  // namespace pgwarp::gpu
