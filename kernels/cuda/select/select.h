// k-selection over the rows of a matrix on the device: the k smallest (or largest) of each row
// with their column numbers, sorted, ties by column. Rows with fewer than k numbers end in
// infinities (of the sign that comes last) with index no_index; NaN counts as no number.
#pragma once

#include "kernels/cuda/select/keys.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/select/plan.h"

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

// Scratch bytes that `plan` needs for a problem of so many rows.
size_t select_scratch_bytes(const SelectPlan& plan, uint32_t rows, uint32_t k);

void select(const SelectProblem& problem, const SelectPlan& plan, void* scratch,
            cudaStream_t stream);

// Selection that goes on: the k smallest of the columns seen before and of these, kept as keys in
// no order. For matrices that come tile by tile.
struct RunningSelect {
    const float* values = nullptr;  // row r at values + r * stride, a multiple of 4; aligned to 16
    size_t stride = 0;
    uint32_t rows = 0;
    uint32_t length = 0;
    const float* addend = nullptr;  // (length), added to every row before it is selected from
    uint32_t first_index = 0;       // the index of column 0
    uint32_t k = 0;                 // 1 .. max_running_k
    uint64_t* keys = nullptr;       // (rows)(k), in and out; no_key where there is none yet
};
void select_running(const RunningSelect& problem, cudaStream_t stream);

}  // namespace pgwarp::gpu
