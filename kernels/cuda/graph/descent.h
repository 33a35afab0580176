// NN-Descent on the device: the paper's Algorithm 1, and with a border between two sets Algorithm
// 3. Rows and lists stay resident from the first tree to the last iteration.
#pragma once

#include "kernels/cuda/graph/match.h"

namespace pgwarp::gpu {

struct DescentWork {
    const GraphView& view;
    const DescentOptions& options;
    KnownPairs known;
    uint32_t border;
    GraphLists& lists;
    const GraphProgress& progress;
};

DescentReport descend(const Context& context, cudaStream_t stream, const DescentWork& work);

// Bytes of device memory per row, beside rows and lists.
size_t descent_row_bytes(const DescentOptions& options);

}  // namespace pgwarp::gpu
