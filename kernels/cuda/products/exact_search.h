// Exact search on the device: computes tiles of inner products (products.h), adds the norms and
// selects candidates in one pass over each tile, and re-scores more than k candidates in float32
// from the vectors. If the error bound of the products does not prove that the k nearest are among
// the candidates, the query is searched again without products.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/products/rescore.h"
#include "kernels/executor.h"

#include <functional>

namespace pgwarp::gpu {

// All pointers are to device memory.
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
    bool merge = false;           // merge with the results in `nearest`; false: overwrite them
    // Called before rows up to `end` are first read, with ascending `end`; may be empty.
    std::function<void(size_t end)> ready;
};
void exact_search(const Context& context, const Blas& blas, cudaStream_t stream,
                  const DeviceExactSearch& search);

}  // namespace pgwarp::gpu
