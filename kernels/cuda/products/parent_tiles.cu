#include "kernels/cuda/products/parent_tiles.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/products/exact_search.h"
#include "kernels/cuda/select/keys.h"
#include "kernels/list_levels.h"

#include <algorithm>
#include <vector>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;
constexpr uint32_t tile = 128;  // rows

unsigned blocks_for(size_t count) {
    return static_cast<unsigned>(divide_up(count, size_t{threads}));
}

// A row's rank among those of its parent. The order is any: a row's list does not depend on it.
__global__ void __launch_bounds__(threads)
    count_rows(const uint32_t* parent_of, uint32_t count, uint32_t* sizes, uint32_t* rank) {
    const uint32_t row = blockIdx.x * threads + threadIdx.x;
    if (row < count) rank[row] = atomicAdd(&sizes[parent_of[row]], 1u);
}

// One block. Where the tiles of each parent begin.
__global__ void __launch_bounds__(1024)
    place_parents(const uint32_t* sizes, uint32_t parents, uint32_t* starts) {
    __shared__ uint32_t sums[1024];
    uint32_t before = 0;
    for (uint32_t base = 0; base < parents; base += 1024) {
        const uint32_t parent = base + threadIdx.x;
        const uint32_t own = parent < parents ? (sizes[parent] + tile - 1) / tile : 0;
        sums[threadIdx.x] = own;
        __syncthreads();
        for (uint32_t distance = 1; distance < 1024; distance *= 2) {
            const uint32_t more = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
            __syncthreads();
            sums[threadIdx.x] += more;
            __syncthreads();
        }
        if (parent < parents) starts[parent] = before + sums[threadIdx.x] - own;
        before += sums[1023];
        __syncthreads();
    }
}

__global__ void __launch_bounds__(threads)
    place_rows(const uint32_t* parent_of, const uint32_t* rank, const uint32_t* starts,
               uint32_t count, uint32_t* row_at, uint32_t* tile_parent) {
    const uint32_t row = blockIdx.x * threads + threadIdx.x;
    if (row >= count) return;
    const uint32_t parent = parent_of[row], at = starts[parent] * tile + rank[row];
    row_at[at] = row;
    if (rank[row] % tile == 0) tile_parent[at / tile] = parent;
}

__global__ void __launch_bounds__(threads)
    take_lists(const uint64_t* keys, const uint32_t* row_at, uint32_t places,
               const uint32_t* list_of, uint32_t* nearest) {
    const uint32_t at = blockIdx.x * threads + threadIdx.x;
    if (at < places && row_at[at] != no_index) nearest[row_at[at]] = list_of[key_index(keys[at])];
}

}  // namespace

ParentTiles::ParentTiles(const Context& context, const Blas& blas, cudaStream_t stream,
                         const float* centroids, const Quantizer& quantizer)
    : context_(context),
      dims_(quantizer.shape.dims),
      count_(quantizer.parents.count),
      parent_centroids_(context.memory, size_t{count_} * dims_),
      origin_(context.memory, dims_) {
    copy_async(parent_centroids_.data(), quantizer.parents.centroids, parent_centroids_.size(),
               stream);
    parents_.emplace(context, stream, parent_centroids_.data(), count_, dims_, Origin::centroids,
                     Wanted::nearest);
    gather_lists(stream, centroids, quantizer);
    choose_near(blas, stream);
}

void ParentTiles::gather_lists(cudaStream_t stream, const float* centroids,
                               const Quantizer& quantizer) {
    const uint32_t* first = quantizer.parents.first;
    std::vector<uint32_t> list_of;
    for (uint32_t p = 0; p < count_; ++p) {
        first_tile_.push_back(static_cast<uint32_t>(list_of.size() / tile));
        for (uint32_t list = first[p]; list < first[p + 1]; ++list) list_of.push_back(list);
        list_of.resize(pair_rows(list_of.size()), no_index);
    }
    first_tile_.push_back(static_cast<uint32_t>(list_of.size() / tile));
    list_of_ = Buffer<uint32_t>(context_.memory, list_of.size());
    copy_async(list_of_.data(), list_of.data(), list_of.size(), stream);
    FloatMatrix matrix{centroids, quantizer.shape.lists, dims_, dims_};
    find_origin(matrix, origin_.data(), stream);
    matrix.origin = origin_.data();
    lists_.grow(context_.memory, list_of.size(), dims_);
    lists_.split_some(matrix, list_of_.data(), list_of.size(), Scales::common, stream);
    // The copy must have read the vector.
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void ParentTiles::choose_near(const Blas& blas, cudaStream_t stream) {
    const uint32_t near = std::min(assigned_parents, count_);
    Buffer<Neighbor> found(context_.memory, size_t{count_} * near);
    DeviceExactSearch search;
    search.queries = search.rows = parent_centroids_.data();
    search.query_count = search.row_count = count_;
    search.dims = dims_;
    search.k = near;
    search.nearest = found.data();
    exact_search(context_, blas, stream, search);
    std::vector<Neighbor> near_parents(found.size());
    copy_async(near_parents.data(), found.data(), found.size(), stream);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    std::vector<uint32_t> begin(1, 0), tiles;
    for (uint32_t p = 0; p < count_; ++p) {
        for (uint32_t i = 0; i < near; ++i) {
            const uint64_t id = near_parents[size_t{p} * near + i].id;
            if (id >= count_) continue;  // no neighbor: the centroid has NaN
            const auto other = static_cast<uint32_t>(id);
            for (uint32_t t = first_tile_[other]; t < first_tile_[other + 1]; ++t)
                tiles.push_back(t);
        }
        begin.push_back(static_cast<uint32_t>(tiles.size()));
    }
    near_begin_ = Buffer<uint32_t>(context_.memory, begin.size());
    near_tiles_ = Buffer<uint32_t>(context_.memory, tiles.size());
    copy_async(near_begin_.data(), begin.data(), begin.size(), stream);
    copy_async(near_tiles_.data(), tiles.data(), tiles.size(), stream);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void ParentTiles::find_nearest(const Blas& blas, cudaStream_t stream, const FloatMatrix& rows,
                               ProductTile& product, uint32_t* nearest) {
    const auto count = static_cast<uint32_t>(rows.count);
    if (count == 0) return;
    // Every parent's last tile may be filled in part.
    const size_t tiles = divide_up(count, tile) + std::min(count_, count);
    const size_t places = tiles * tile;
    DeviceMemory& memory = context_.memory;
    parent_of_.grow(memory, count);
    rank_.grow(memory, count);
    sizes_.grow(memory, count_);
    starts_.grow(memory, count_);
    tile_parent_.grow(memory, tiles);
    row_at_.grow(memory, places);
    keys_.grow(memory, places);
    sorted_.grow(memory, places, dims_);

    parents_->find_nearest(blas, stream, rows, product, parent_of_.data());
    clear_async(sizes_.data(), count_, stream);
    launch("count_rows", count_rows, {blocks_for(count), threads, 0, stream}, parent_of_.data(),
           count, sizes_.data(), rank_.data());
    launch("place_parents", place_parents, {1, 1024, 0, stream}, sizes_.data(), count_,
           starts_.data());
    check(cudaMemsetAsync(row_at_.data(), 0xff, places * sizeof(uint32_t), stream),
          "cudaMemsetAsync");
    check(cudaMemsetAsync(tile_parent_.data(), 0xff, tiles * sizeof(uint32_t), stream),
          "cudaMemsetAsync");
    launch("place_rows", place_rows, {blocks_for(count), threads, 0, stream}, parent_of_.data(),
           rank_.data(), starts_.data(), count, row_at_.data(), tile_parent_.data());
    FloatMatrix moved = rows;
    moved.origin = origin_.data();
    sorted_.split_some(moved, row_at_.data(), places, Scales::own, stream);
    nearest_of_groups(context_, sorted_.view(), lists_.view(),
                      {tile_parent_.data(), near_begin_.data(), near_tiles_.data()}, keys_.data(),
                      stream);
    launch("take_lists", take_lists, {blocks_for(places), threads, 0, stream}, keys_.data(),
           row_at_.data(), static_cast<uint32_t>(places), list_of_.data(), nearest);
}

}  // namespace pgwarp::gpu
