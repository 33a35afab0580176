// The rows near to rows of a graph's table, for its repair.
#pragma once

#include "extension/graph/auto.h"

namespace pgwarp {

// Rows that have a vector, and a distance to others.
struct KeptRows {
    int64* keys;  // (count)
    float* rows;  // (count)(dims), as they are stored
    Size count;
    uint32 dims;
};
// Reads the rows with these keys, inside SPI. Keys that the table does not have are left out.
KeptRows read_kept_rows(const KeptGraph& kept, const int64* keys, Size count);

struct NearRow {
    int64 key;
    float distance;  // the operator's
};

// (count)(most), nearest first. The row itself may be among them.
struct NearRows {
    NearRow* rows;
    uint32* counts;
    uint32 most;
};
NearRows find_near_rows(const KeptGraph& kept, const KeptRows& rows, uint32 most);

}  // namespace pgwarp
