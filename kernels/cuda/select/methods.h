#pragma once

#include "kernels/cuda/select/select.h"

namespace pgwarp::gpu {

// The methods behind select(). `scratch`, for more than one split: (rows * splits)(k).
void block_select(const SelectProblem& problem, uint32_t splits, uint64_t* scratch,
                  cudaStream_t stream);
void warp_select(const SelectProblem& problem, uint32_t splits, uint64_t* scratch,
                 cudaStream_t stream);

// For rows of up to 1024 columns.
void short_select(const SelectProblem& problem, cudaStream_t stream);

// The second pass of the first two: (rows)(length) keys into the sorted k of each row.
void merge_keys(const SelectProblem& problem, const uint64_t* keys, uint32_t length,
                cudaStream_t stream);

}  // namespace pgwarp::gpu
