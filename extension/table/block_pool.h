// A pool of blocks in shared memory: workers fill blocks with rows, and one process, the consumer,
// takes them.
#pragma once

#include "kernels/row_elements.h"
#include "extension/compat.h"

namespace pgwarp {

// A block that its holder fills or reads.
struct RowBlock {
    uint32 number;
    uint32* count;
    uint64* position;  // sort key of the block in the order of the table, where that matters
    void* rows;        // (block_rows)(dims), of the pool's elements
    uint64* tids;      // (block_rows)
    uint8* others;     // (block_rows)(other_bytes)

    // Of a pool of floats.
    float* floats() const { return static_cast<float*>(rows); }
};

// A row in a pool: its vector, its TID, and bytes that the pool only carries.
struct RowShape {
    RowShape(uint32 with_dims, RowElements with_elements, uint32 with_other_bytes = 0)
        : dims(with_dims), elements(with_elements), other_bytes(with_other_bytes) {}
    Size vector_bytes() const { return dims * bytes_of(elements); }
    Size bytes() const { return vector_bytes() + sizeof(uint64) + other_bytes; }

    uint32 dims;
    RowElements elements;
    uint32 other_bytes;
};

struct BlockPool;

Size block_pool_bytes(uint32 blocks, uint32 block_rows, RowShape row);
// The shape for this many workers, where the consumer holds up to `held` blocks while it takes
// more. Bounded by `memory` and by the shared memory that the server has.
struct PoolShape {
    uint32 blocks;
    uint32 block_rows;
};
PoolShape pool_shape(int workers, uint32 held, RowShape row, Size memory);
// How many of these workers shared memory suffices for, with blocks of the smallest size: fewer
// where rows are long and a container is small.
int workers_in_shared_memory(int workers, uint32 held, RowShape row, Size memory);
// All blocks are empty at first.
BlockPool* init_block_pool(void* memory, uint32 blocks, uint32 block_rows, RowShape row);
uint32 block_rows_of(const BlockPool* pool);

// The worker's side. take_empty_block() waits for an empty block; hand_over() passes it, filled, to
// the consumer. A worker without further rows calls leave_block_pool().
RowBlock take_empty_block(BlockPool* pool);
void hand_over(BlockPool* pool, const RowBlock& block);
void leave_block_pool(BlockPool* pool);

// The consumer's side. Whether there is a full block; takes no lock, so it is cheap enough to call
// for every row.
bool has_full_block(const BlockPool* pool);
// Does not wait. False: no block is full now.
bool take_full_block(BlockPool* pool, RowBlock* block);
// Waits for a full block. False: none is left, and all `workers` have left the pool.
bool wait_for_full_block(BlockPool* pool, int workers, RowBlock* block);
void give_back(BlockPool* pool, const RowBlock& block);

}  // namespace pgwarp
