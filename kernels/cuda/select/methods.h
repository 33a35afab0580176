#pragma once

#include "kernels/cuda/select/select.h"

namespace pgwarp::gpu {

// The implementations of select(). `scratch`: (rows * splits)(k) if splits > 1, else unused.
void block_select(const SelectProblem& problem, uint32_t splits, uint64_t* scratch,
                  cudaStream_t stream);
void warp_select(const SelectProblem& problem, uint32_t splits, uint64_t* scratch,
                 cudaStream_t stream);

// For rows of up to 1024 columns.
void short_select(const SelectProblem& problem, cudaStream_t stream);

// The second pass of block_select() and warp_select(): writes the sorted k smallest of each row of
// (rows)(length) keys.
void merge_keys(const SelectProblem& problem, const uint64_t* keys, uint32_t length,
                cudaStream_t stream);

}  // namespace pgwarp::gpu
