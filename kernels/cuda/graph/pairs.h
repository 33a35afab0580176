// Pairs of rows within a bound, on the device.
//
// A rectangle of the distance matrix is a product at nearly the accuracy of float32 (products.h).
// Pairs that its error bound does not put beyond the limit are candidates; their distances are
// computed from the rows.
#pragma once

#include "kernels/cuda/base/blas.h"
#include "kernels/cuda/graph/rows.h"
#include "kernels/similar_pairs.h"

#include <memory>

namespace pgwarp::gpu {

// All of these outlive the finder.
std::unique_ptr<PairFinder> make_pair_finder(const Context& context, const Blas& blas,
                                             Uploader& uploader, cudaStream_t stream,
                                             const GraphRows& rows, float bound);

}  // namespace pgwarp::gpu
