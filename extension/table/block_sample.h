// Rows of single blocks of a table, for samples.
#pragma once

#include "kernels/random.h"
#include "extension/compat.h"

extern "C" {
#include "access/tableam.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"
}

namespace pgwarp {

// A scan of one block costs more to begin and to end than the rows on it do. Where the index is on
// a column of a heap, this looks at the page itself instead; else it scans.
struct BlockSampler;
BlockSampler* open_block_sampler(Relation heap, Relation index, IndexInfo* info);
// Calls back for the rows of some blocks that a build would index: those that are live, and what
// this transaction has made of them.
void sample_blocks(BlockSampler* sampler, BlockNumber first, BlockNumber count,
                   IndexBuildCallback callback, void* state);
// The same for one block, and for this part of its rows, drawn by chance, where that is less work:
// each row has the same chance, however many the block has.
void sample_some_rows(BlockSampler* sampler, BlockNumber block, double part, Random* random,
                      IndexBuildCallback callback, void* state);
void close_block_sampler(BlockSampler* sampler);

}  // namespace pgwarp
