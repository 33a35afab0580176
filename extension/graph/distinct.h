// The rows of a set without those that equal another bit for bit. Text that many rows share, or
// that is empty, has one embedding: n such rows are n^2 / 2 pairs.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/graph/set.h"

namespace pgwarp {

struct DistinctRows {
    GraphSet set;     // the first of equal rows stands for them; without keys
    uint32* numbers;  // (rows of the whole set) of each row's vector in `set`; null: its own
    uint32 number_of(Size row) const { return numbers ? numbers[row] : static_cast<uint32>(row); }
};

// Takes the vectors from `whole`, which keeps its keys. Where no two rows are equal, they stay as
// they are.
DistinctRows take_distinct_rows(GraphSet* whole);

// A vector by its number in a set; in `buffer` if the set is in a file.
const float* vector_of(const GraphSet& set, Size number, float* buffer);

}  // namespace pgwarp
