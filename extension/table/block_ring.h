// A ring in shared memory: workers fill its blocks with rows, and one process, the consumer, takes
// them.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

// A block that its holder fills or reads.
struct RowBlock {
    uint32 number;
    uint32* count;
    uint64* position;  // sort key of the block in the order of the table, where that matters
    float* rows;       // (block_rows)(dims)
    uint64* tids;      // (block_rows)
};

struct BlockRing;

Size block_ring_bytes(uint32 blocks, uint32 block_rows, uint32 dims);
// The shape for this many workers, where the consumer holds up to `held` blocks while it takes
// more. Bounded by `memory` and by the shared memory that the server has.
struct RingShape {
    uint32 blocks;
    uint32 block_rows;
};
RingShape ring_shape(int workers, uint32 held, uint32 dims, Size memory);
// How many of these workers shared memory suffices for, with blocks of the smallest size: fewer
// where rows are long and a container is small.
int workers_in_shared_memory(int workers, uint32 held, uint32 dims, Size memory);
// All blocks are empty at first.
BlockRing* init_block_ring(void* memory, uint32 blocks, uint32 block_rows, uint32 dims);
uint32 block_rows_of(const BlockRing* ring);

// The worker's side. take_empty_block() waits for an empty block; hand_over() passes it, filled, to
// the consumer. A worker without further rows calls leave_block_ring().
RowBlock take_empty_block(BlockRing* ring);
void hand_over(BlockRing* ring, const RowBlock& block);
void leave_block_ring(BlockRing* ring);

// The consumer's side. Whether there is a full block; takes no lock, so it is cheap enough to call
// for every row.
bool has_full_block(const BlockRing* ring);
// Does not wait. False: no block is full now.
bool take_full_block(BlockRing* ring, RowBlock* block);
// Waits for a full block. False: none is left, and all `workers` have left the ring.
bool wait_for_full_block(BlockRing* ring, int workers, RowBlock* block);
void give_back(BlockRing* ring, const RowBlock& block);

}  // namespace pgwarp
