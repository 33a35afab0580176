// Exact search of rows that come block by block, for a fixed set of queries.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/products/rescore.h"
#include "kernels/cuda/products/tile_products.h"

namespace pgwarp::gpu {

// Searches a stream of rows for a fixed set of queries, which are prepared once. Never
// synchronizes, and never searches a query again: it may miss some of the neighbors that are much
// closer to each other than to most rows. Use it to measure recall, not to answer queries.
class RunningSearch {
  public:
    struct Shape {
        const float* queries;  // (query_count)(dims), on the device; outlives the search
        size_t query_count;
        uint32_t dims;
        Metric metric;
        uint32_t k;        // 1 .. max_exact_k
        size_t most_rows;  // most rows of one add()
        // For short vectors: the origin that rows split by the caller are relative to, (dims); or
        // null.
        const float* origin = nullptr;
    };
    RunningSearch(const Context& context, const Blas& blas, cudaStream_t stream,
                  const Shape& shape);

    // Rows and ids, on the device, are read in the stream's order and not needed afterwards.
    // `pairs`: the rows already split, relative to the shape's origin; or null.
    void add(const float* rows, const uint64_t* ids, size_t count,
             const PairMatrix* pairs = nullptr);

    // (query_count)(k), sorted, on the device.
    const Neighbor* nearest() const { return nearest_.data(); }

  private:
    void split_tile(const float* rows, size_t count);
    void multiply_tile(size_t first_query, size_t queries, const PairView& rows);

    const Context& context_;
    const Blas& blas_;
    cudaStream_t stream_;
    Shape shape_;
    size_t tile_queries_, tile_rows_;
    Buffer<float> own_origin_;
    const float* origin_;
    // For short vectors, by tile_products.h:
    bool by_tiles_;
    PairMatrix query_pairs_, row_pairs_;
    // For long vectors, by products.h:
    Buffer<__half> query_halves_, row_halves_;
    Buffer<float> norms_;
    Buffer<float> products_;
    Buffer<uint64_t> keys_;
    Buffer<uint32_t> scales_;
    Buffer<float> factors_;
    Buffer<Neighbor> nearest_;
    bool merge_ = false;
};

}  // namespace pgwarp::gpu
