// Sorts rows by keys whose upper bits are a group; there are few groups.
#pragma once

#include "kernels/common.h"
#include "kernels/workers.h"

#include <cstddef>

namespace pgwarp {

struct KeyedRow {
    uint64_t key;
    uint64_t row;
};

// Keys in chunks of equal length; the last may be shorter.
struct ChunkedKeys {
    const uint64_t* const* chunks;
    size_t chunk_rows;
    size_t count;
};

// Sorts the rows by key; keys are distinct. `starts`, (groups + 1): where each group's rows begin.
// Distributes the rows to their groups first and then sorts each group, which fits a cache. After a
// throw it can be called again.
void sort_by_group(Workers& workers, const ChunkedKeys& keys, int group_shift, uint32_t groups,
                   KeyedRow* sorted, uint64_t* starts);

}  // namespace pgwarp
