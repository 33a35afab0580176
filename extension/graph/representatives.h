// Which row of each group of duplicates stands for it.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/graph/distinct.h"
#include "extension/graph/set.h"

namespace pgwarp {

struct DuplicateGroup {
    Size begin, end;        // of its members
    uint32 representative;  // row
};

// Rows that are in groups, group after group, by key within each.
struct DuplicateGroups {
    const GraphSet* set;  // keys
    const DistinctRows* vectors;
    uint32* members;
    DuplicateGroup* groups;
    Size count;
};

enum class Representative { first, central, by_expression };

// 'first', 'central', or else an expression, of which this checks the syntax.
Representative representative_called(const char* name);

// Sets the representative of each group: its first key, the row nearest to the mean of its vectors,
// or the row that comes first in the order of the expression, with the caller's rights.
void choose_first(DuplicateGroups* groups);
void choose_central(DuplicateGroups* groups);
void choose_by_expression(DuplicateGroups* groups, const TableColumns& columns,
                          const char* expression);

// The vector of a row; in `buffer` if vectors are in a file.
const float* vector_of_row(const DuplicateGroups& groups, uint32 row, float* buffer);

}  // namespace pgwarp
