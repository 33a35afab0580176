// Samples of the rows that an index build would see, and estimates of their number.
#pragma once

#include "kernels/common.h"
#include "kernels/random.h"
#include "extension/compat.h"

extern "C" {
#include "nodes/execnodes.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Rows in index form, with their TIDs. Of rows that belong into no list (index/column.h) it has
// none.
struct Sample {
    uint32 dims;
    uint32 count;
    uint32 room;
    float* rows;   // (count)(dims)
    uint64* tids;  // (count)
    uint64 seen;   // rows that the sample was drawn from
    double share;  // of these that belong into lists
};
// An empty sample with room for this many rows, in the current memory context.
Sample new_sample(uint32 dims, uint32 room);
// Reservoir sampling (Algorithm R), which gives every row the same probability: returns the slot
// for the next row seen, or `room` where it is not taken.
uint32 draw_slot(Sample* sample, Random* random);
// Drops rows that belong into no list.
void keep_rows_in_lists(Metric metric, Sample* sample);
// The order of slots depends on the order of rows, but training needs random subsets. Makes the
// first `rows` slots a random draw from the sample; the rest stays behind them, not shuffled.
void shuffle_sample(Sample* sample, Random* random, uint32 rows = PG_UINT32_MAX);
// Subsets of a table's sample are taken from its beginning, where this many rows are in random
// order.
inline constexpr uint32 shuffled_rows = 65536;

// What reading some blocks of a table says about the rows that an index build would see.
struct TableLook {
    BlockNumber blocks;  // of the table
    uint64 seen;         // rows seen: at least `enough`, or all there are
    double rows;         // estimate for the whole table; exact where every block was read
    // Where every block was read, one bit each: whether it has such rows. Else null.
    const uint8* has_rows;
    BlockNumber blocks_with_rows;  // how many bits are set
};
// Reads random blocks until it has seen `enough` rows and the estimate is sound, or has read all
// blocks. Rows of partial indexes, and vectors that are not null, may be few or lie in one region
// of the table. (The planner's estimate does not know how long the vectors of a new table are.)
TableLook look_at_table(Relation heap, Relation index, IndexInfo* info, uint64 enough, int64 seed);

// A uniform sample of the rows an index build would see, the first shuffled_rows in random order;
// the same seed gives the same sample. Up to `workers` workers read vectors that lie in TOAST.
Sample sample_table(Relation heap, Relation index, IndexInfo* info, Metric metric, uint32 dims,
                    const TableLook& look, uint32 rows, int64 seed, int workers);

}  // namespace pgwarp
