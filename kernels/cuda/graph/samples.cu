#include "kernels/cuda/graph/samples.h"

#include "kernels/cuda/graph/hash.h"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/select/warp_select.cuh"

#include <bit>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;

// Twice as many places as samples, so that few collide.
uint32_t backward_places(uint32_t samples) {
    return std::bit_ceil(2 * samples);
}

struct Draw {
    uint64_t* lists;
    size_t count;
    uint32_t degree;
    uint32_t samples;
    uint32_t border;
    uint32_t places, place_bits;
    uint32_t salt;
    uint32_t *fresh_forwards, *old_forwards, *fresh_backwards, *old_backwards;
};

__device__ __forceinline__ void draw_backwards(const Draw& d, uint32_t* backwards, uint32_t row,
                                               uint32_t target) {
    const uint32_t place = short_hash(row, d.salt, d.place_bits);
    atomicMin(backwards + size_t{target} * d.places + place, scatter(row ^ d.salt));
}

// One warp per row: samples the nearest new and the nearest old neighbors.
__global__ void __launch_bounds__(threads) draw_samples(Draw d) {
    const size_t row = (size_t{blockIdx.x} * threads + threadIdx.x) / 32;
    if (row >= d.count) return;
    uint64_t* list = d.lists + row * d.degree;
    uint32_t* fresh_forwards = d.fresh_forwards + row * d.samples;
    uint32_t* old_forwards = d.old_forwards + row * d.samples;
    const unsigned before_me = (1u << lane_id()) - 1;
    uint32_t fresh_count = 0, old_count = 0;
    for (uint32_t first = 0; first < d.degree; first += 32) {
        const uint32_t i = first + lane_id();
        const uint64_t key = i < d.degree ? list[i] : no_edge();
        const uint32_t other = edge_row(key);
        const bool is_fresh = other != no_row && (key_index(key) & fresh_edge);
        const bool is_old = other != no_row && !is_fresh && (other < d.border) == (row < d.border);
        const unsigned fresh_lanes = __ballot_sync(whole_warp, is_fresh);
        const unsigned old_lanes = __ballot_sync(whole_warp, is_old);
        const uint32_t fresh_at = fresh_count + __popc(fresh_lanes & before_me);
        const uint32_t old_at = old_count + __popc(old_lanes & before_me);
        if (is_fresh && fresh_at < d.samples) {
            list[i] = key & ~static_cast<uint64_t>(fresh_edge);
            fresh_forwards[fresh_at] = other;
            draw_backwards(d, d.fresh_backwards, static_cast<uint32_t>(row), other);
        }
        if (is_old && old_at < d.samples) {
            old_forwards[old_at] = other;
            draw_backwards(d, d.old_backwards, static_cast<uint32_t>(row), other);
        }
        fresh_count += __popc(fresh_lanes);
        old_count += __popc(old_lanes);
    }
    for (uint32_t i = fresh_count + lane_id(); i < d.samples; i += 32) fresh_forwards[i] = no_row;
    for (uint32_t i = old_count + lane_id(); i < d.samples; i += 32) old_forwards[i] = no_row;
}

}  // namespace

GraphSamples::GraphSamples(const Context& context, size_t count, uint32_t samples)
    : count_(count),
      samples_(samples),
      fresh_forwards_(context.memory, count * samples),
      old_forwards_(context.memory, count * samples),
      fresh_backwards_(context.memory, count * backward_places(samples)),
      old_backwards_(context.memory, count * backward_places(samples)) {}

size_t GraphSamples::row_bytes(uint32_t samples) {
    return 2 * (samples + backward_places(samples)) * sizeof(uint32_t);
}

void GraphSamples::draw(uint64_t* lists, uint32_t degree, uint32_t border, uint32_t salt,
                        cudaStream_t stream) {
    for (Buffer<uint32_t>* backwards : {&fresh_backwards_, &old_backwards_})
        check(
            cudaMemsetAsync(backwards->data(), 0xff, backwards->size() * sizeof(uint32_t), stream),
            "cudaMemsetAsync");
    salt_ = salt;
    const uint32_t places = backward_places(samples_);
    const Draw draw{lists,
                    count_,
                    degree,
                    samples_,
                    border,
                    places,
                    static_cast<uint32_t>(std::countr_zero(places)),
                    salt,
                    fresh_forwards_.data(),
                    old_forwards_.data(),
                    fresh_backwards_.data(),
                    old_backwards_.data()};
    launch("draw_samples", draw_samples,
           {static_cast<unsigned>(divide_up(count_ * 32, size_t{threads})), threads, 0, stream},
           draw);
}

SampleView GraphSamples::view() const {
    return {fresh_forwards_.data(),
            old_forwards_.data(),
            fresh_backwards_.data(),
            old_backwards_.data(),
            samples_,
            backward_places(samples_),
            salt_};
}

}  // namespace pgwarp::gpu
