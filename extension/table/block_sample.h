// Reading the rows of single blocks of a table, for samples.
#pragma once

#include "kernels/random.h"
#include "extension/compat.h"

extern "C" {
#include "access/tableam.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Starting and ending a scan of one block costs more than reading the rows on it. Where the index
// is on a plain column of a heap, the sampler reads the page itself instead; else it scans.
struct BlockSampler;
BlockSampler* open_block_sampler(Relation heap, Relation index, IndexInfo* info);
// Calls back for those rows of `count` blocks that a build would index: live rows, as changed by
// the current transaction.
void sample_blocks(BlockSampler* sampler, BlockNumber first, BlockNumber count,
                   IndexBuildCallback callback, void* state);
// The same for one block, and for a random part of its rows, where that saves work: each row has
// the probability `part`, however many rows the block has.
void sample_some_rows(BlockSampler* sampler, BlockNumber block, double part, Random* random,
                      IndexBuildCallback callback, void* state);
void close_block_sampler(BlockSampler* sampler);

}  // namespace pgwarp
