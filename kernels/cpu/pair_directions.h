// Principal directions of rows: those in which they differ most.
#pragma once

#include "kernels/knn_graph.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// Around the mean of the rows where distances do not depend on an origin.
struct PairDirections {
    uint32_t count;
    std::vector<float> matrix;  // (count)(dims), the strongest first
    std::vector<float> mean;    // (dims); zeros for inner products
    double error;  // |P - P'|, at most, for the matrix P and the nearest one with orthonormal rows
};

// Throws std::runtime_error where there is no LAPACK, which does the part of the work that polls no
// interrupts.
PairDirections find_directions(Workers& workers, const GraphRows& sample, uint32_t count);

// Bytes beside the sample, and multiplications: those of LAPACK, on one thread, count as several.
size_t directions_memory(uint32_t dims, uint32_t count, int threads);
double directions_work(uint32_t dims, size_t sample_rows);

}  // namespace pgwarp
