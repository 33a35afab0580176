// Exact search on the device: tiles of inner products (products.h), the norms added and the
// nearest selected in one pass over each tile, and some more candidates than wanted re-scored in
// float32 from the vectors themselves. Where it cannot be shown that the nearest are among these, a
// query is searched for once more, without products.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/products/tile_products.h"
#include "kernels/executor.h"

#include <functional>

namespace pgwarp::gpu {

inline constexpr uint32_t max_exact_k = 2048;

// All memory on the device.
struct DeviceExactSearch {
    const float* queries = nullptr;  // (query_count)(dims)
    size_t query_count = 0;
    const float* rows = nullptr;  // (row_count)(dims), fewer than 2^32
    size_t row_count = 0;
    const uint64_t* ids = nullptr;  // (row_count); null: row numbers
    uint32_t dims = 0;
    Metric metric = Metric::l2;
    uint32_t k = 0;               // 1 .. max_exact_k
    Neighbor* nearest = nullptr;  // (query_count)(k), sorted
    bool merge = false;           // nearest holds results to merge with; else it is overwritten
    // Called before rows up to `end` are first read, in order; may be empty.
    std::function<void(size_t end)> ready;
};
void exact_search(const Context& context, const Blas& blas, cudaStream_t stream,
                  const DeviceExactSearch& search);

// The same queries for rows that come and go: made ready once, nothing is waited for. Nor is
// anything searched for twice: of neighbors that are far nearer to each other than to most rows
// some may be missed, so this is for measuring recall, and not for answers.
class RunningSearch {
  public:
    struct Shape {
        const float* queries;  // (query_count)(dims), on the device, while the search lives
        size_t query_count;
        uint32_t dims;
        Metric metric;
        uint32_t k;        // 1 .. max_exact_k
        size_t most_rows;  // of an add()
        // Of short vectors: where those are measured from that come split, (dims), or null.
        const float* origin = nullptr;
    };
    RunningSearch(const Context& context, const Blas& blas, cudaStream_t stream,
                  const Shape& shape);

    // Rows and ids, on the device, are read in the stream's order, and not needed afterwards. The
    // rows may have been split already, measured from the origin of the shape.
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
    // Of short vectors:
    bool by_tiles_;
    PairMatrix query_pairs_, row_pairs_;
    // Else:
    Buffer<__half> query_halves_, row_halves_;
    Buffer<float> norms_;
    Buffer<float> products_;
    Buffer<uint64_t> keys_;
    Buffer<uint32_t> scales_;
    Buffer<float> factors_;
    Buffer<Neighbor> nearest_;
    bool merge_ = false;
};

// Rows whose products make one tile.
inline constexpr size_t exact_tile_rows = 65536;

}  // namespace pgwarp::gpu
