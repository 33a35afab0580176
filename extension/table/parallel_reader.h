// Parallel workers read the vectors of a table for one process that feeds a device.
//
// Each worker takes a range of table blocks at a time and fills blocks of a pool in shared memory;
// the process takes full blocks in any order. The workers read what the process's TableReader
// would: the same rows by the same snapshot, with privileges checked before they start. Where no
// worker can be had, or a query reads the rows (see table_reader.h), the process reads them itself.
//
// While a reader has workers, the transaction is in parallel mode: nothing may be written.
#pragma once

#include "kernels/common.h"
#include "kernels/executor.h"
#include "extension/table/block_filler.h"
#include "extension/table/block_pool.h"
#include "extension/table/table_reader.h"

namespace pgwarp {

struct ParallelRead {
    RowIds ids;
    // Where vectors are normalised, one that has no direction, or is out of range
    // (kernels/vector_range.h), sets `odd`.
    RowForm form;
    int workers;  // upper bound
    Size memory;  // bytes of the pool
    uint32 held;  // blocks that the caller takes before it gives the first back
};

// A good size of the pool: a larger one takes longer to set up, and the caller consumes rows as
// fast as they come.
inline Size usual_pool_bytes() {
    return Min(static_cast<Size>(maintenance_work_mem) * 1024 / 4, Size{24} << 20);
}

struct ParallelReader;
// Rewinds the table's reader. `device`, where not null, registers the pool's memory for DMA.
ParallelReader* open_parallel_reader(TableReader* table, const ParallelRead& wanted,
                                     Executor* device);
uint32 most_block_rows(const ParallelReader* reader);
// Blocks that the caller may take before it gives one back: at most the `held` it asked for.
uint32 most_taken_blocks(const ParallelReader* reader);

// The next block, which the caller gives back; false: no more. Blocks come in any order; their
// positions give the order of the table.
bool next_block(ParallelReader* reader, RowBlock* block);
void give_back(ParallelReader* reader, const RowBlock& block);

// Valid once all blocks were read.
struct ParallelCounts {
    int64 rows;
    int64 nulls;
    bool odd;  // a row that a device cannot order: a vector without direction, or the largest key
};
ParallelCounts close_parallel_reader(ParallelReader* reader);
// Closes the reader before all blocks were read.
void abandon_parallel_reader(ParallelReader* reader);

}  // namespace pgwarp

extern "C" PGWARP_EXPORT void pgwarp_read_worker(struct dsm_segment* segment, struct shm_toc* toc);
