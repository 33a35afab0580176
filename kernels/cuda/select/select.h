// k-selection over the rows of a matrix on the device: the k smallest (or largest) of each row
// with their column numbers, sorted, ties by column. NaN is never selected. Rows with fewer than k
// other values are padded with infinities (negative for the largest) and index no_index.
#pragma once

#include "kernels/cuda/select/keys.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/select/plan.h"

#include <cuda_runtime_api.h>

namespace pgwarp::gpu {

struct SelectProblem {
    const float* values = nullptr;  // row r at values + r * stride
    size_t stride = 0;
    uint32_t rows = 0;
    uint32_t length = 0;
    uint32_t k = 0;  // 1 .. max_select_k
    bool largest = false;
    float* out_values = nullptr;      // (rows)(k)
    uint32_t* out_indices = nullptr;  // (rows)(k)
};

// Scratch bytes that `plan` needs for `rows` rows.
size_t select_scratch_bytes(const SelectPlan& plan, uint32_t rows, uint32_t k);

void select(const SelectProblem& problem, const SelectPlan& plan, void* scratch,
            cudaStream_t stream);

// Incremental selection for matrices that are computed tile by tile: updates each row's k smallest
// of earlier columns with the columns of this tile. Keys are unordered.
struct RunningSelect {
    const float* values = nullptr;  // row r at values + r * stride, a multiple of 4; aligned to 16
    size_t stride = 0;
    uint32_t rows = 0;
    uint32_t length = 0;
    const float* addend = nullptr;  // (length), added to every row before it is selected from
    uint32_t first_index = 0;       // the index of column 0
    uint32_t k = 0;                 // 1 .. max_running_k
    uint64_t* keys = nullptr;       // (rows)(k), in and out; no_key in unused slots
};
void select_running(const RunningSelect& problem, cudaStream_t stream);

}  // namespace pgwarp::gpu
