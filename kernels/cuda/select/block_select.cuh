// A block selects the k smallest of a stream of keys: filter, collect, cut.
//
// Keys above a bound are dropped. The others are collected in shared memory, each warp in a segment
// of its own, so that collecting needs neither atomics nor barriers. When a segment is full, the
// block cuts: it keeps the k smallest of all collected keys and lowers the bound. The cut is a
// radix selection that starts at the highest bit in which the keys differ, so that its bins fill
// evenly. A row in random order needs few cuts and streams through at memory bandwidth.
//
// The result does not depend on the order of the keys: keys are distinct, and keys whose value
// equals the bound are collected, so that a cut decides ties by index.
#pragma once

#include "kernels/cuda/select/block_sort.cuh"

namespace pgwarp::gpu {

// Room for `kept` keys, and for `segment` more per warp. `blocks` is the occupancy in blocks per
// multiprocessor; `streaming_blocks` is that of kernels that stream long rows and need shared
// memory for a FloatRing beside the keys.
template <int thread_count, int kept_room, int segment_room, int block_count, int streaming>
struct SelectShape {
    static constexpr int threads = thread_count;
    static constexpr int warps = threads / 32;
    static constexpr int kept = kept_room;
    static constexpr int segment = segment_room;
    static constexpr int blocks = block_count;
    static constexpr int streaming_blocks = streaming;
    static constexpr int capacity = kept + warps * segment;
    static constexpr int items = capacity / threads;
    static_assert(capacity % threads == 0);
};
// For k up to 128, 1152 and 2304: that leaves room for the extra candidates of a search.
using SmallSelect = SelectShape<128, 128, 224, 8, 6>;
using MediumSelect = SelectShape<256, 1152, 368, 4, 3>;
using LargeSelect = SelectShape<512, 2304, 368, 2, 2>;
// For k up to 512 of a long row where there are fewer rows than multiprocessors.
using WideSelect = SelectShape<512, 512, 160, 2, 2>;

template <class Shape>
class BlockSelect {
  public:
    static constexpr int threads = Shape::threads;
    static constexpr int warps = Shape::warps;
    static constexpr int items = Shape::items;
    static constexpr int capacity = Shape::capacity;

    struct alignas(16) Storage {
        // Kept keys, then the warps' segments. Between cuts unused slots are undefined; a cut first
        // sets them to no_key.
        uint64_t keys[capacity];
        uint32_t bins[256];
        struct {
            uint64_t all_ones, any_ones;
            uint32_t count;
        } part[warps];
        uint32_t bin, bin_count, below;  // of the last radix step
        uint32_t written;
        uint32_t largest;
    };

    __device__ BlockSelect(Storage& storage, uint32_t k) : s_(storage), k_(k) {}

    // Keys with a larger value are not selected. The same in all threads of a warp.
    __device__ float bound() const { return bound_; }

    // Free slots in this warp's segment.
    __device__ int room() const { return Shape::segment - waiting_; }

    // Called by all lanes of a warp. Stores the keys of lanes with `wanted`; room() must suffice.
    __device__ __forceinline__ void collect(bool wanted, uint64_t key) {
        const unsigned lanes = __ballot_sync(whole_warp, wanted);
        if (wanted) {
            const unsigned before = __popc(lanes & ((1u << lane_id()) - 1));
            s_.keys[Shape::kept + warp() * Shape::segment + waiting_ + before] = key;
        }
        waiting_ += __popc(lanes);
    }

    // Called by all lanes of a warp. Reserves `mine` slots for this lane and returns the first, or
    // returns null in all lanes if the segment has no room for the whole warp.
    __device__ __forceinline__ uint64_t* reserve(uint32_t mine) {
        uint32_t through = mine;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const uint32_t before = __shfl_up_sync(whole_warp, through, distance);
            if (lane_id() >= distance) through += before;
        }
        const auto all = static_cast<int>(__shfl_sync(whole_warp, through, 31));
        if (all > room()) return nullptr;
        const uint32_t at = waiting_ + through - mine;
        waiting_ += all;
        return s_.keys + Shape::kept + warp() * Shape::segment + at;
    }

    // Called by one warp, without a barrier. Drops keys of its segment that are larger than k
    // others there, and lowers the warp's bound. Approximate, and much cheaper than a cut. For k up
    // to most_pruned.
    static constexpr uint32_t most_pruned = 32;
    __device__ void prune() {
        const Pruned pruned = prune_keys(s_, k_, waiting_);
        waiting_ = pruned.waiting;
        bound_ = fminf(bound_, ordered_value(pruned.bound));
    }

    // Called by the whole block, before anything is collected. Loads the first keys, key(i) for
    // i < count, unfiltered; key(i) may be no_key. count <= capacity. Ends with a cut.
    template <class GetKey>
    __device__ void fill(uint32_t count, GetKey key) {
#pragma unroll 8
        for (uint32_t i = threadIdx.x; i < capacity; i += threads)
            s_.keys[i] = i < count ? key(i) : no_key;
        take(cut_keys(s_, k_, Shape::kept, Shape::segment));
    }

    // Called by the whole block. Keeps the k smallest keys and lowers the bound.
    __device__ void cut() {
        take(cut_keys(s_, k_, kept_, waiting_));
    }

    // Called by the whole block after a cut: forgets all keys. None above the bound is selected.
    __device__ void begin_again(float bound) {
        kept_ = 0;
        bound_ = fminf(bound_, bound);
    }

    // Keys kept by the last cut, unordered, and their number. The same in all threads.
    __device__ const uint64_t* kept() const {
        return s_.keys;
    }
    __device__ uint32_t kept_count() const {
        return kept_;
    }

    // Called by the whole block, after a cut and as the last call. Calls put(i, key) for i < k with
    // the kept keys in order, then no_key. `sort_items` * threads >= k.
    template <int sort_items, class Put>
    __device__ void sort(Put put) {
        uint64_t item[sort_items];
#pragma unroll
        for (int i = 0; i < sort_items; ++i) {
            const uint32_t at = i * threads + threadIdx.x;
            item[i] = at < kept_ ? s_.keys[at] : no_key;
        }
        __syncthreads();
        block_sort<threads, sort_items>(item, s_.keys);
#pragma unroll
        for (int i = 0; i < sort_items; ++i) {
            const uint32_t at = threadIdx.x * sort_items + i;
            if (at < k_) put(at, item[i]);
        }
    }

  private:
    __device__ static int warp() {
        return threadIdx.x / 32;
    }

    struct Spread {
        uint64_t all_ones, any_ones;
        uint32_t count;
    };

    // Counts the keys, and finds the bits that are the same in all of them.
    __device__ static __forceinline__ Spread spread(Storage& s, const uint64_t (&item)[items]) {
        Spread mine{no_key, 0, 0};
#pragma unroll
        for (int i = 0; i < items; ++i) {
            if (item[i] == no_key) continue;
            mine.all_ones &= item[i];
            mine.any_ones |= item[i];
            ++mine.count;
        }
        reduce(mine);
        if (lane_id() == 0) s.part[warp()] = {mine.all_ones, mine.any_ones, mine.count};
        __syncthreads();
        Spread all{no_key, 0, 0};
        if (lane_id() < warps) {
            const auto part = s.part[lane_id()];
            all = {part.all_ones, part.any_ones, part.count};
        }
        reduce(all);
        return all;
    }
    __device__ static void reduce(Spread& spread) {
        const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
        const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
        const auto join = [](uint32_t h, uint32_t l) { return static_cast<uint64_t>(h) << 32 | l; };
        spread.all_ones = join(__reduce_and_sync(whole_warp, high(spread.all_ones)),
                               __reduce_and_sync(whole_warp, low(spread.all_ones)));
        spread.any_ones = join(__reduce_or_sync(whole_warp, high(spread.any_ones)),
                               __reduce_or_sync(whole_warp, low(spread.any_ones)));
        spread.count = __reduce_add_sync(whole_warp, spread.count);
    }

    // A pivot with exactly `k` of the `all.count` > k keys at or below it: the high bits of a key,
    // followed by ones.
    __device__ static __forceinline__ uint64_t find_pivot(Storage& s, const uint64_t (&item)[items],
                                                          const Spread& all, uint32_t k) {
        int top = 64 - __clzll(all.all_ones ^ all.any_ones);  // the keys differ only in bits below
        uint64_t prefix = top == 64 ? 0 : all.all_ones >> top << top;
        while (true) {
            const int shift = top > 8 ? top - 8 : 0;
            const uint32_t mask = (1u << (top - shift)) - 1;
            for (int i = threadIdx.x; i < 256; i += threads) s.bins[i] = 0;
            __syncthreads();
#pragma unroll
            for (int i = 0; i < items; ++i) {
                const bool inside =
                    item[i] != no_key && (top == 64 || (item[i] ^ prefix) >> top == 0);
                if (inside) atomicAdd(&s.bins[static_cast<uint32_t>(item[i] >> shift) & mask], 1u);
            }
            __syncthreads();
            if (warp() == 0) pick_bin(s, k);
            __syncthreads();
            k -= s.below;
            prefix |= static_cast<uint64_t>(s.bin) << shift;
            // The whole bin is selected: no need to refine.
            if (s.bin_count == k || shift == 0) return prefix | ((uint64_t{1} << shift) - 1);
            top = shift;
        }
    }

    // Called by one warp. Finds the bin of the k-th key.
    __device__ static __forceinline__ void pick_bin(Storage& s, uint32_t k) {
        uint32_t count[8], sum = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += count[i] = s.bins[lane_id() * 8 + i];
        uint32_t through = sum;  // inclusive prefix sum over lanes
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const uint32_t before = __shfl_up_sync(whole_warp, through, distance);
            if (lane_id() >= distance) through += before;
        }
        uint32_t below = through - sum;
        if (below >= k || through < k) return;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (below < k && below + count[i] >= k) {
                s.bin = lane_id() * 8 + i;
                s.bin_count = count[i];
                s.below = below;
                return;
            }
            below += count[i];
        }
    }

    struct Pruned {
        int waiting;
        uint32_t bound;  // ordered bits
    };
    // The k-th smallest of the lanes' minima has at least k keys at or below it, so it is a bound.
    __device__ static __noinline__ Pruned prune_keys(Storage& s, uint32_t k, int waiting) {
        constexpr int most = (Shape::segment + 31) / 32;
        uint64_t* segment = s.keys + Shape::kept + warp() * Shape::segment;
        uint64_t key[most];
        uint32_t least = ordered_bits(bits_float(infinity_bits));
        __syncwarp();
#pragma unroll
        for (int i = 0; i < most; ++i) {
            const int at = i * 32 + static_cast<int>(lane_id());
            key[i] = at < waiting ? segment[at] : no_key;
            least = min(least, static_cast<uint32_t>(key[i] >> 32));
        }
#pragma unroll
        for (int size = 2; size <= 32; size *= 2)
#pragma unroll
            for (int distance = size / 2; distance > 0; distance /= 2) {
                const uint32_t other = __shfl_xor_sync(whole_warp, least, distance);
                const bool low = (lane_id() & distance) == 0, up = (lane_id() & size) == 0;
                least = low == up ? min(least, other) : max(least, other);
            }
        const uint32_t bound = __shfl_sync(whole_warp, least, k - 1);
        __syncwarp();  // all lanes have read the slots overwritten below
        int left = 0;
#pragma unroll
        for (int i = 0; i < most; ++i) {
            const bool wanted = key[i] != no_key && static_cast<uint32_t>(key[i] >> 32) <= bound;
            const unsigned lanes = __ballot_sync(whole_warp, wanted);
            if (wanted) segment[left + __popc(lanes & ((1u << lane_id()) - 1))] = key[i];
            left += __popc(lanes);
        }
        __syncwarp();
        return {left, bound};
    }

    struct Cut {
        uint32_t kept;
        uint32_t largest;  // ordered bits
    };
    __device__ __forceinline__ void take(const Cut& cut) {
        kept_ = cut.kept;
        waiting_ = 0;
        if (kept_ >= k_) bound_ = ordered_value(cut.largest);
    }

    // Moves the k smallest keys to the front of the storage. Not inlined: cuts are rare, and the
    // register pressure would make the streaming loop spill.
    __device__ static __noinline__ Cut cut_keys(Storage& s, uint32_t k, uint32_t kept,
                                                uint32_t waiting) {
        uint64_t* segment = s.keys + Shape::kept + warp() * Shape::segment;
        for (uint32_t i = waiting + lane_id(); i < Shape::segment; i += 32) segment[i] = no_key;
        for (uint32_t i = kept + threadIdx.x; i < Shape::kept; i += threads) s.keys[i] = no_key;
        if (threadIdx.x == 0) s.written = s.largest = 0;
        __syncthreads();
        uint64_t item[items];
#pragma unroll
        for (int i = 0; i < items; ++i) item[i] = s.keys[i * threads + threadIdx.x];

        const Spread all = spread(s, item);
        const uint64_t pivot = all.count > k ? find_pivot(s, item, all, k) : no_key - 1;

        uint32_t mine = 0, largest = 0;
#pragma unroll
        for (int i = 0; i < items; ++i) {
            if (item[i] > pivot) continue;
            ++mine;
            largest = max(largest, static_cast<uint32_t>(item[i] >> 32));
        }
        uint32_t at = mine;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const uint32_t before = __shfl_up_sync(whole_warp, at, distance);
            if (lane_id() >= distance) at += before;
        }
        largest = __reduce_max_sync(whole_warp, largest);
        uint32_t base = 0;
        if (lane_id() == 31) {
            base = atomicAdd(&s.written, at);
            atomicMax(&s.largest, largest);
        }
        at += __shfl_sync(whole_warp, base, 31) - mine;
#pragma unroll
        for (int i = 0; i < items; ++i)
            if (item[i] <= pivot) s.keys[at++] = item[i];
        __syncthreads();
        const Cut cut{s.written, s.largest};
        __syncthreads();
        return cut;
    }

    Storage& s_;
    uint32_t k_;
    uint32_t kept_ = 0;
    int waiting_ = 0;  // keys in this warp's segment
    float bound_ = bits_float(infinity_bits);
};

// Called by the whole block. Selects from `length` keys in global memory; `select` is still empty.
// Ends with a cut.
template <class Shape>
__device__ void collect_keys(BlockSelect<Shape>& select, const uint64_t* keys, uint32_t length) {
    constexpr uint32_t groups = 4;
    const uint32_t head = min(length, static_cast<uint32_t>(Shape::capacity));
    select.fill(head, [&](uint32_t i) { return keys[i]; });
    if (head == length) return;
    for (uint32_t base = head; base < length; base += groups * Shape::threads) {
        uint64_t key[groups];
#pragma unroll
        for (uint32_t g = 0; g < groups; ++g) {
            const uint32_t at = base + g * Shape::threads + threadIdx.x;
            key[g] = at < length ? keys[at] : no_key;
        }
        uint32_t next = 0;
        while (true) {
#pragma unroll
            for (uint32_t g = 0; g < groups; ++g) {
                if (g != next || select.room() < 32) continue;
                select.collect(key_value(key[g]) <= select.bound(), key[g]);
                next = g + 1;
            }
            if (!__syncthreads_or(next < groups)) break;
            select.cut();
        }
    }
    select.cut();
}

}  // namespace pgwarp::gpu
