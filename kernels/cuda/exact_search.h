// Exact search on the device: tiles of inner products (products.h), the norms added and the
// nearest selected in one pass over each tile, and some more candidates than wanted re-scored in
// float32 from the vectors themselves.
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/cuda/stream.h"
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

// Rows whose products make one tile.
inline constexpr size_t exact_tile_rows = 65536;

}  // namespace pgwarp::gpu
