// Candidates for the exact graph from one product in half precision, with the selection in the same
// kernel: values that are too large never leave the registers.
//
// A value is off by at most 2^-10 of the norms. So the nearest by their values, some more than are
// wanted, get their distances from the rows; and where the k-th of these is nearer than the last
// candidate by more than values can be off, nobody was missed. Rows of which this cannot be said
// are searched again by exact_lists_of(). With limits, which cheaper methods find, few values pass
// from the first row on.
#pragma once

#include "kernels/cuda/graph/exact.h"

namespace pgwarp::gpu {

bool filter_fits(const Context& context, const ExactWork& work);
void filter_lists(const Context& context, const Blas& blas, cudaStream_t stream,
                  const ExactWork& work);

}  // namespace pgwarp::gpu
