// k-means, one Lloyd iteration at a time, so that the caller can look around between two of them.
// There is at least one row and one cluster.
#pragma once

#include "kernels/common.h"
#include "kernels/workers.h"

namespace pgwarp {

// Writes for each row the nearest centroid by L2 (the lowest number among equals) and, where
// `distances` is not null, the squared distance to it.
struct Assignment {
    const float* rows;  // (count)(dims)
    size_t count;
    uint32_t dims;
    const float* centroids;  // (clusters)(dims)
    uint32_t clusters;
    uint32_t* nearest;  // (count)
    float* distances;   // (count), or null
};
void assign_nearest(Workers& workers, const Assignment& assignment);

// The start: `clusters` different rows drawn with `seed` (all of them in turn, repeated, where
// there are fewer rows than clusters).
void kmeans_start(const float* rows, size_t count, uint32_t dims, uint32_t clusters, uint64_t seed,
                  float* centroids);

// Assigns every row and moves each centroid to the mean of its rows. A centroid without rows is put
// into the largest cluster. Returns the mean squared distance before the move. Where it throws, the
// centroids are as they were.
double kmeans_step(Workers& workers, const float* rows, size_t count, uint32_t dims,
                   uint32_t clusters, float* centroids);

}  // namespace pgwarp
