// The rows of each cluster, and what becomes of a cluster that has none.
#pragma once

#include "kernels/common.h"

#include <functional>
#include <vector>

namespace pgwarp {

// Row numbers grouped by cluster: group c is members[begin[c] .. begin[c + 1]), in order.
struct Groups {
    std::vector<size_t> begin;
    std::vector<uint32_t> members;

    Groups(const std::vector<uint32_t>& cluster_of, uint32_t clusters);
    size_t size(uint32_t c) const { return begin[c + 1] - begin[c]; }
};

// Gives each empty cluster a part of the largest one. Its centroid is put beside that one's mean, a
// little towards one of the rows, and the next assignment divides them: about in halves, for half
// of the rows lie on that side. The mean itself stays, so that the objective cannot rise. A crowd
// of equal rows cannot be divided and is passed over, however large.
//
// (To put it on a row far from all centroids would lower the objective more at first, but among
// many dimensions a row has few others nearer to it than to their mean: the list would stay short.)
//
// row_of(i) is the row of members[i], valid until the next call. Rows of one cluster are asked for
// in order.
using RowOfMember = std::function<const float*(size_t member)>;
void fill_empty(const Groups& groups, const RowOfMember& row_of, uint32_t dims, float* centroids);

// The same where not all rows are at hand: next_row(c) is a row of cluster c that was not asked for
// before, or null where there is none.
using NextRow = std::function<const float*(uint32_t cluster)>;
void fill_empty(const std::vector<size_t>& sizes, const NextRow& next_row, uint32_t dims,
                float* centroids);

}  // namespace pgwarp
