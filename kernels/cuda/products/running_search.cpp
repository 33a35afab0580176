#include "kernels/cuda/products/running_search.h"

#include "kernels/cuda/select/select.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace pgwarp::gpu {

// All queries are split once, relative to one origin; each tile of rows is split once, too. Then
// the products of each tile of queries and a tile of rows are computed and selected from.
RunningSearch::RunningSearch(const Context& context, const Blas& blas, cudaStream_t stream,
                             const Shape& shape)
    : context_(context), blas_(blas), stream_(stream), shape_(shape) {
    if (shape.k == 0 || shape.k > max_exact_k)
        throw std::runtime_error("exact search on a device finds at most " +
                                 std::to_string(max_exact_k) + " neighbors");
    const bool l2 = has_norms(shape.metric);
    const uint32_t candidates = candidates_to_rescore(shape.k);
    const uint32_t width = split_width(shape.dims);
    DeviceMemory& memory = context.memory;
    nearest_ = Buffer<Neighbor>(memory, shape.query_count * shape.k);
    keys_ = Buffer<uint64_t>(memory, shape.query_count * candidates);

    by_tiles_ = fits_tiles(context, shape.dims);
    const auto whole = by_tiles_ ? pair_rows : padded_rows;
    tile_rows_ = std::clamp(whole(shape.most_rows), whole(1), exact_tile_rows);
    // Larger tiles are not faster, and other operations need memory too.
    constexpr size_t max_tile_bytes = size_t{512} << 20;
    const size_t room = std::min(context.scratch() / 2, max_tile_bytes);
    const size_t row_bytes = width * sizeof(__half) + sizeof(float);
    while (true) {
        const size_t fixed = tile_rows_ * row_bytes;
        tile_queries_ = room > fixed ? std::min(shape.query_count,
                                                (room - fixed) / (tile_rows_ * sizeof(float)))
                                     : 0;
        if (tile_queries_ >= std::min<size_t>(shape.query_count, 1024) || tile_rows_ <= 1024) break;
        tile_rows_ = whole(tile_rows_ / 2);
    }
    tile_queries_ = std::min(tile_queries_, (size_t{1} << 31) / tile_rows_);
    // A view must begin at a tile: several query tiles are multiples of pair_rows(1).
    if (by_tiles_ && tile_queries_ < shape.query_count)
        tile_queries_ = tile_queries_ / pair_rows(1) * pair_rows(1);
    tile_queries_ = std::max(tile_queries_, by_tiles_ ? pair_rows(1) : 1);
    products_ = Buffer<float>(memory, std::min(tile_queries_, shape.query_count) * tile_rows_);
    own_origin_ = Buffer<float>(memory, l2 && !shape.origin ? shape.dims : 0);
    origin_ = shape.origin ? shape.origin : own_origin_.data();
    const FloatMatrix queries{shape.queries, shape.query_count, shape.dims, shape.dims, origin_};
    if (own_origin_.size() > 0) find_origin(queries, own_origin_.data(), stream);
    if (by_tiles_) {
        query_pairs_.grow(memory, shape.query_count, shape.dims);
        query_pairs_.split(queries, Scales::own, stream);
    } else {
        query_halves_ = Buffer<__half>(memory, shape.query_count * width);
        row_halves_ = Buffer<__half>(memory, tile_rows_ * width);
        norms_ = Buffer<float>(memory, tile_rows_);
        scales_ = Buffer<uint32_t>(memory, 2);
        factors_ = Buffer<float>(memory, 2);
        split_rows(queries, Side::left, query_halves_.data(), scales_.data(), nullptr, stream);
    }
    // Start without neighbors: this is the result of a query with fewer than k rows.
    clear_neighbors(nearest_.data(), nearest_.size(), stream);
    clear_keys(keys_.data(), keys_.size(), stream);
}

void RunningSearch::split_tile(const float* rows, size_t count) {
    const FloatMatrix matrix{rows, count, shape_.dims, shape_.dims, origin_};
    if (by_tiles_) {
        row_pairs_.grow(context_.memory, tile_rows_, shape_.dims);
        row_pairs_.split(matrix, Scales::own, stream_);
    } else {
        split_rows(matrix, Side::right, row_halves_.data(), scales_ + 1, norms_.data(), stream_);
    }
}

// Computes the products of some queries and a tile of rows. For long vectors only rows.count is
// used.
void RunningSearch::multiply_tile(size_t first_query, size_t queries, const PairView& rows) {
    const float factor = product_factor(shape_.metric);
    if (by_tiles_)
        multiply_by_tiles(context_, query_pairs_.view(first_query, queries), rows, factor,
                          products_.data(), tile_rows_, stream_);
    else
        multiply(blas_, stream_,
                 {query_halves_ + first_query * split_width(shape_.dims), scales_.data(), queries},
                 {row_halves_.data(), scales_ + 1, rows.count}, shape_.dims, factor,
                 products_.data(), tile_rows_, factors_.data());
}

void RunningSearch::add(const float* rows, const uint64_t* ids, size_t count,
                        const PairMatrix* pairs) {
    if (count == 0) return;
    const uint32_t candidates = candidates_to_rescore(shape_.k);
    const bool l2 = has_norms(shape_.metric);
    if (merge_) make_keys_stale(keys_.data(), keys_.size(), candidates, stream_);
    for (size_t first = 0; first < count; first += tile_rows_) {
        const size_t here = std::min(tile_rows_, count - first);
        if (!pairs) split_tile(rows + first * shape_.dims, here);
        PairView tile{nullptr, nullptr, norms_.data(), here, shape_.dims};
        if (by_tiles_) tile = pairs ? pairs->view(first, here) : row_pairs_.view();
        for (size_t query = 0; query < shape_.query_count; query += tile_queries_) {
            const size_t queries = std::min(tile_queries_, shape_.query_count - query);
            multiply_tile(query, queries, tile);
            select_running({products_.data(), tile_rows_, static_cast<uint32_t>(queries),
                            static_cast<uint32_t>(here), l2 ? tile.norms : nullptr,
                            static_cast<uint32_t>(first), candidates, keys_ + query * candidates},
                           stream_);
        }
    }
    // The number of blocks of a grid is limited to 2^31 - 1.
    constexpr size_t max_blocks = size_t{1} << 30;
    for (size_t query = 0; query < shape_.query_count; query += max_blocks)
        rescore(
            {shape_.queries + query * shape_.dims, rows, ids, shape_.dims, l2, shape_.k, candidates,
             keys_ + query * candidates, nearest_.data() + query * shape_.k, merge_},
            std::min(max_blocks, shape_.query_count - query), stream_);
    merge_ = true;
}

}  // namespace pgwarp::gpu
