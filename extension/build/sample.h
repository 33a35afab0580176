// Samples of the rows that an index build would see, and how many rows these are.
#pragma once

#include "kernels/common.h"
#include "kernels/random.h"
#include "extension/compat.h"

extern "C" {
#include "nodes/execnodes.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Rows in index form, with their TIDs.
struct Sample {
    uint32 dims;
    uint32 count;
    uint32 room;
    float* rows;   // (count)(dims)
    uint64* tids;  // (count)
    uint64 seen;   // rows there were to choose from
};
// Room for so many rows, in the current memory context.
Sample new_sample(uint32 dims, uint32 room);
// Algorithm R, which gives every row the same chance to be in the sample at the end: the slot of
// the row seen next, or `room` where it is not taken.
uint32 draw_slot(Sample* sample, Random* random);
// Slots remember when their rows came; training wants its subsets random. Of more rows than these
// the first so many are random, and the rest is left over.
void shuffle_sample(Sample* sample, Random* random, uint32 rows = PG_UINT32_MAX);
// What is taken of a table's sample for one purpose or another comes from its beginning, of which
// so many rows are in random order.
inline constexpr uint32 shuffled_rows = 65536;

// What a look at blocks of a table has told of the rows that an index build would see.
struct TableLook {
    BlockNumber blocks;  // of the table
    uint64 seen;         // rows: at least `enough`, or all there are
    double rows;         // of the whole table, by estimate; exact where every block was looked at
    // Where every block was looked at, a bit for each: whether it has such rows. Else null.
    const uint8* has_rows;
    BlockNumber blocks_with_rows;  // how many bits are set
};
// Looks at blocks in a random order until it has seen `enough` rows and the estimate is sound, or
// has looked at all. Rows of partial indexes, and vectors that are not null, may be few or lie in
// one region of the table. (The planner's estimate knows nothing of how long the vectors of a new
// table are.)
TableLook look_at_table(Relation heap, Relation index, IndexInfo* info, uint64 enough, int64 seed);

// A uniform sample of the rows an index build would see, in random order; the same for one seed.
Sample sample_table(Relation heap, Relation index, IndexInfo* info, Metric metric, uint32 dims,
                    const TableLook& look, uint32 rows, int64 seed);

}  // namespace pgwarp
