// Sorting rows by group and number: keys whose upper bits are a group, of which there are not many.
#pragma once

#include "kernels/common.h"
#include "kernels/workers.h"

#include <cstddef>

namespace pgwarp {

struct KeyedRow {
    uint64_t key;
    uint64_t row;
};

// Keys in chunks of the same length, but for the last.
struct ChunkedKeys {
    const uint64_t* const* chunks;
    size_t chunk_rows;
    size_t count;
};

// Puts the rows in the order of their keys; no two of them are the same. `starts`, (groups + 1):
// where each group's rows begin. Rows are dealt out to their groups first, and these then sorted
// one by one, each in a cache. Where it throws, it can be called again.
void sort_by_group(Workers& workers, const ChunkedKeys& keys, int group_shift, uint32_t groups,
                   KeyedRow* sorted, uint64_t* starts);

}  // namespace pgwarp
