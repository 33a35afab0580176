// Blocks of rows that workers fill and one process takes, in shared memory.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

// A block that somebody fills or reads.
struct RowBlock {
    uint32 number;
    uint32* count;
    uint64* position;  // what the rows' order is known by, where it matters
    float* rows;       // (block_rows)(dims)
    uint64* tids;      // (block_rows)
};

struct BlockRing;

Size block_ring_bytes(uint32 blocks, uint32 block_rows, uint32 dims);
// Blocks for so many workers, and for the other side to hold some while it takes more, within this
// memory and what the server has of it.
struct RingShape {
    uint32 blocks;
    uint32 block_rows;
};
RingShape ring_shape(int workers, uint32 held, uint32 dims, Size memory);
// How many workers there is shared memory for, blocks of the least size at hand for each: fewer
// where rows are long and a container is small.
int workers_in_shared_memory(int workers, uint32 held, uint32 dims, Size memory);
// Begins with all blocks empty.
BlockRing* init_block_ring(void* memory, uint32 blocks, uint32 block_rows, uint32 dims);
uint32 block_rows_of(const BlockRing* ring);

// A worker's side: waits for an empty block, and hands it over. leave_block_ring() when it has no
// more rows.
RowBlock take_empty_block(BlockRing* ring);
void hand_over(BlockRing* ring, const RowBlock& block);
void leave_block_ring(BlockRing* ring);

// The other side. May be called at every row: whether there is a full block.
bool has_full_block(const BlockRing* ring);
// False: there is none now.
bool take_full_block(BlockRing* ring, RowBlock* block);
// Waits; false: there is none, and all of so many workers have left.
bool wait_for_full_block(BlockRing* ring, int workers, RowBlock* block);
void give_back(BlockRing* ring, const RowBlock& block);

}  // namespace pgwarp
