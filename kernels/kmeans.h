// k-means, one Lloyd iteration per call, so that the caller can check for interrupts and progress
// between iterations. There is at least one row and one cluster.
#pragma once

#include "kernels/common.h"
#include "kernels/quantizer.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// Writes the nearest centroid of each row by L2 (ties go to the lowest number) and, where
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
// The same where the centroids have parents: the nearest of those of the nearest parents. Without
// parents, of all.
void assign_nearest(Workers& workers, const Assignment& assignment, const Parents& parents);

// The start: `clusters` distinct rows drawn with `seed`; where there are fewer rows than clusters,
// all rows, repeated cyclically.
void kmeans_start(const float* rows, size_t count, uint32_t dims, uint32_t clusters, uint64_t seed,
                  float* centroids);

// Assigns every row and moves each centroid to the mean of its rows. A centroid without rows moves
// into the largest cluster. Returns the mean squared distance before the move. On a throw the
// centroids are unchanged.
double kmeans_step(Workers& workers, const float* rows, size_t count, uint32_t dims,
                   uint32_t clusters, float* centroids);

// The sums of such a step, of rows that are a part of all.
struct KmeansSums;
KmeansSums kmeans_sums(Workers& workers, const float* rows, size_t count, uint32_t dims,
                       uint32_t clusters, const float* centroids);

// One Lloyd iteration over rows that come a block at a time: equals kmeans_step() over all of them
// up to rounding. The result does not depend on how the rows are cut into blocks.
class KmeansPass {
  public:
    KmeansPass(uint32_t dims, uint32_t clusters, const float* centroids);

    // On a throw nothing was added.
    void add(Workers& workers, const float* rows, size_t count);

    // Moves the centroids.
    void finish(float* centroids) const;

    const std::vector<size_t>& sizes() const { return sizes_; }

    // Bytes of a pass.
    static size_t bytes(uint32_t dims, uint32_t clusters);

  private:
    static constexpr size_t kept_rows = 2;  // of each cluster, to reseed empty clusters with

    uint32_t dims_, clusters_;
    std::vector<float> centroids_;  // (clusters)(dims)
    std::vector<double> sums_;      // (clusters)(dims)
    std::vector<float> kept_;       // (clusters)(kept_rows)(dims)
    std::vector<size_t> sizes_;     // (clusters)
};

}  // namespace pgwarp
