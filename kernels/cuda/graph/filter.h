// Candidates for the exact graph from one product in half precision. The same kernel selects them,
// so that values beyond the bound never leave the registers.
//
// A value has an error of at most 2^-10 of the norms. The rows with the smallest values, some more
// than the degree, get exact distances. If the k-th of these is nearer than the last candidate by
// more than the error bound, the list is complete. All other rows are searched again by
// exact_lists_of(). With limits (ExactWork), few values pass the bound from the first row on.
#pragma once

#include "kernels/cuda/graph/exact.h"

namespace pgwarp::gpu {

bool filter_fits(const Context& context, const ExactWork& work);
void filter_lists(const Context& context, const Blas& blas, cudaStream_t stream,
                  const ExactWork& work);

}  // namespace pgwarp::gpu
