// A build's pass over the table where a device encodes. Workers fill blocks of a pool with rows in
// index form. The leader owns the device and feeds it full blocks; it reads rows itself while no
// block is full.
#pragma once

#include "extension/create/shared_build.h"

namespace pgwarp {

// The pool's shape; without workers, `block_rows` is the leader's batch. `held`: blocks that the
// device has at a time.
PoolShape pool_for(int workers, uint32 held, RowShape row);

// A worker's share of the pass.
void fill_blocks(const BuildTable& table, SharedBuild* shared, BlockPool* pool);
// The leader's, to its end.
void take_blocks(const BuildTable& table, ParallelContext* context, const BuildMemory& memory,
                 EncodePass* pass);

}  // namespace pgwarp
