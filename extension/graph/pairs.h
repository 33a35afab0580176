// Pairs of rows of a table within a distance of each other.
#pragma once

#include "kernels/similar_pairs.h"
#include "extension/compat.h"
#include "extension/graph/set.h"

namespace pgwarp {

// What the user asked for: distances as the metric's operator has them.
struct PairLimit {
    Metric metric;
    double most;
    float bound;  // the largest distance of an Edge whose operator's distance is at most `most`
};
// Reports an error where no pair could be meant.
PairLimit make_pair_limit(Metric metric, double max_distance);

// Receives each pair once, by the rows' numbers in the set.
struct PairSink {
    void (*put)(void* state, const RowPair& pair);
    void* state;
};

// Reads a table with the caller's rights, for find_similar_pairs().
GraphSet read_pair_set(const TableColumns& columns, Metric metric);

// Compares all pairs, on a device if that pays. A set in memory is spilled to a file if the device
// has no room for all rows.
void find_similar_pairs(GraphSet* set, const PairLimit& limit, const PairSink& sink);

// Pairs as rows of a function's result, (key, key, distance): the smaller key first.
struct PairWriter;
PairWriter* open_pair_writer(const ReturnSetInfo* result, const KeyNames* names);
void write_pair(PairWriter* writer, int64 one, int64 other, float4 distance);

}  // namespace pgwarp
