// Exact search for functions: the nearest rows of a table to many queries, in one pass over it.
#pragma once

#include "kernels/executor.h"
#include "extension/compat.h"

extern "C" {
#include "utils/rel.h"
#include "utils/snapshot.h"
}

namespace pgwarp {

// Rows that the snapshot sees and that the index has.
struct SearchedTable {
    Relation heap;
    Relation index;
    Snapshot snapshot;
    Metric metric;
    uint32 dims;
    double rows;  // about
};

// Queries that want the same number of neighbors.
struct QuerySet {
    const float* queries;  // (count)(dims), in index form
    uint32 count;
    uint32 k;
    Neighbor* nearest;  // (count)(k), nearest first, by TID; infinite distances where rows are few
};
inline constexpr int most_query_sets = 2;

// The work is a device's or that of several threads: see open_build_executor(). A set may be empty.
void find_true_neighbors(const SearchedTable& table, const QuerySet* sets, int set_count);

// Bytes that a search takes, the queries themselves and `nearest` included.
Size search_bytes(uint32 dims, const QuerySet* sets, int set_count);

// Whether a vector has distances. Under cosine, one whose squared norm is zero or overflows has
// none: it is far from every query, or its distance is NaN.
bool has_distances(Metric metric, const float* vector, uint32 dims);

}  // namespace pgwarp
