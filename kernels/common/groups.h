// The rows of each cluster, and how empty clusters are filled.
#pragma once

#include "kernels/common.h"

#include <functional>
#include <span>
#include <vector>

namespace pgwarp {

// Row numbers grouped by cluster: group c is members[begin[c] .. begin[c + 1]), in order.
struct Groups {
    std::vector<size_t> begin;
    std::vector<uint32_t> members;

    Groups(const std::vector<uint32_t>& cluster_of, uint32_t clusters);
    size_t size(uint32_t c) const { return begin[c + 1] - begin[c]; }
};

// Gives each empty cluster a part of the largest one. The empty cluster's centroid is put close to
// the mean of the largest, in the direction of one of its rows, and the next assignment splits the
// rows: about in halves, because half of the rows lie on that side. The mean itself stays, so that
// the objective cannot rise. Equal rows cannot be split, so a cluster of them is skipped, however
// large.
//
// (A centroid on a row far from all others would lower the objective more at first. But in many
// dimensions few rows are nearer to such a row than to their mean: the list would stay short.)
//
// row_of(i) is the row of members[i], valid until the next call. Rows of one cluster are requested
// in order.
using RowOfMember = std::function<const float*(size_t member)>;
void fill_empty(const Groups& groups, const RowOfMember& row_of, uint32_t dims, float* centroids);

// The same for rows that have to be fetched: fetch(numbers, out) copies the rows of these numbers.
using FetchRows = std::function<void(std::span<const uint32_t> numbers, float* out)>;
void fill_empty_fetching(const Groups& groups, const FetchRows& fetch, uint32_t dims,
                         float* centroids);

// The same where only some rows are in memory: next_row(c) returns another row of cluster c at each
// call, or null at the end.
using NextRow = std::function<const float*(uint32_t cluster)>;
void fill_empty(const std::vector<size_t>& sizes, const NextRow& next_row, uint32_t dims,
                float* centroids);

}  // namespace pgwarp
