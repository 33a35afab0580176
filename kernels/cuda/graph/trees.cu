#include "kernels/cuda/graph/trees.h"

#include "kernels/cuda/graph/distance.cuh"
#include "kernels/cuda/graph/hash.h"
#include "kernels/cuda/base/launch.cuh"

#include <cub/device/device_radix_sort.cuh>

#include <utility>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;
// Low bits of a projection that the sort ignores: any order of ties halves a group as well.
constexpr uint32_t rough_bits = 8;

__global__ void __launch_bounds__(threads)
    deal(uint32_t count, uint64_t seed, uint64_t* keys, uint32_t* order) {
    const uint32_t i = blockIdx.x * threads + threadIdx.x;
    if (i >= count) return;
    keys[i] = hash64(seed ^ hash64(i)) & 0xffffffffu;
    order[i] = i;
}

// One warp per place: projects its row onto the difference of two random rows of its group.
__global__ void __launch_bounds__(threads)
    project(GraphView view, const uint32_t* order, uint32_t level, uint64_t seed, uint64_t* keys) {
    const size_t place = (size_t{blockIdx.x} * threads + threadIdx.x) / 32;
    if (place >= view.count) return;
    const uint32_t group = group_of(static_cast<uint32_t>(place), level, view.count);
    const uint32_t begin = group_begin(group, level, view.count);
    const uint32_t size = group_begin(group + 1, level, view.count) - begin;
    const uint64_t chance = hash64(seed + group);
    const auto drawn = [&](uint32_t part) {
        return view.row(order[begin + static_cast<uint32_t>((uint64_t{part} * size) >> 32)]);
    };
    const float* a = drawn(static_cast<uint32_t>(chance));
    const float* b = drawn(static_cast<uint32_t>(chance >> 32));
    const float* row = view.row(order[place]);
    float sum = 0;
    for (uint32_t d = lane_id() * 4; d < view.stride; d += 128) {
        const float4 x = __ldg(reinterpret_cast<const float4*>(row + d));
        const float4 y = __ldg(reinterpret_cast<const float4*>(a + d));
        const float4 z = __ldg(reinterpret_cast<const float4*>(b + d));
        sum = fmaf(x.x, y.x - z.x, sum);
        sum = fmaf(x.y, y.y - z.y, sum);
        sum = fmaf(x.z, y.z - z.z, sum);
        sum = fmaf(x.w, y.w - z.w, sum);
    }
    sum = sum_of_lanes(sum);
    if (lane_id() == 0)
        keys[place] = static_cast<uint64_t>(group) << 32 | ordered_bits(sum == sum ? sum : 0.0f);
}

size_t sort_scratch(size_t count) {
    size_t bytes = 0;
    cub::DoubleBuffer<uint64_t> keys;
    cub::DoubleBuffer<uint32_t> orders;
    check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, orders, static_cast<int64_t>(count),
                                          0, 64),
          "SortPairs");
    return bytes;
}

}  // namespace

GraphTrees::GraphTrees(const Context& context, const GraphView& view, size_t leaf_rows)
    : context_(context), view_(view) {
    while (largest_leaf() > leaf_rows) ++levels_;
    for (Buffer<uint64_t>& keys : keys_) keys = Buffer<uint64_t>(context.memory, view.count);
    for (Buffer<uint32_t>& order : orders_) order = Buffer<uint32_t>(context.memory, view.count);
    scratch_ = Buffer<char>(context.memory, sort_scratch(view.count));
}

size_t GraphTrees::bytes(size_t count) {
    return count * 2 * (sizeof(uint64_t) + sizeof(uint32_t)) + sort_scratch(count);
}

uint32_t GraphTrees::largest_leaf() const {
    return static_cast<uint32_t>((size_t{view_.count} + leaves() - 1) >> levels_);
}

void GraphTrees::sort(uint32_t first_bit, uint32_t end_bit, cudaStream_t stream) {
    cub::DoubleBuffer<uint64_t> keys(keys_[now_].data(), keys_[1 - now_].data());
    cub::DoubleBuffer<uint32_t> orders(orders_[now_].data(), orders_[1 - now_].data());
    size_t bytes = scratch_.size();
    check(cub::DeviceRadixSort::SortPairs(
              scratch_.data(), bytes, keys, orders, static_cast<int64_t>(view_.count),
              static_cast<int>(first_bit), static_cast<int>(end_bit), stream),
          "SortPairs");
    // Keys and orders end in the buffer of the same index.
    if (orders.Current() != orders_[now_].data()) now_ = 1 - now_;
}

void GraphTrees::grow(uint64_t seed, bool by_planes, cudaStream_t stream) {
    const auto blocks = divide_up(view_.count, threads);
    launch("deal", deal, {blocks, threads, 0, stream}, view_.count, seed, keys_[now_].data(),
           orders_[now_].data());
    sort(0, 32, stream);
    if (!by_planes) return;
    const auto warps = static_cast<unsigned>(divide_up(size_t{view_.count} * 32, size_t{threads}));
    for (uint32_t level = 0; level < levels_; ++level) {
        context_.check_interrupt();
        launch("project", project, {warps, threads, 0, stream}, view_, orders_[now_].data(), level,
               hash64(seed + level + 1), keys_[now_].data());
        sort(rough_bits, 32 + level, stream);
    }
}

}  // namespace pgwarp::gpu
