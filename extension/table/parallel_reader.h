// The vectors of a table, read by several processes for one that has a device to feed.
//
// Workers take ranges of blocks, each a few at a time, and fill blocks of a ring in shared memory,
// which the process takes as they come. What they read is what its TableReader would: the same
// rows by the same snapshot, with rights looked after before. Where there are no workers to be had,
// or the rows are to be asked for by a query, the process reads them itself.
//
// While a reader is open, the transaction is in parallel mode: nothing is written.
#pragma once

#include "kernels/common.h"
#include "kernels/executor.h"
#include "extension/table/block_ring.h"
#include "extension/table/table_reader.h"

namespace pgwarp {

// What is told of each row beside its vector.
enum class RowIds {
    none,
    keys,    // key_id() of the key
    places,  // TIDs as numbers
};

struct ParallelRead {
    RowIds ids;
    // Vectors are normalised, and one that cannot be (its norm is zero, or none) is noted.
    bool normalise;
    int workers;  // at most
    Size memory;  // of the ring
    uint32 held;  // blocks that are taken before the first is given back
};

// Good for the ring's memory: to share more takes time, and who takes rows is as fast as they come.
inline Size usual_ring_bytes() {
    return Min(static_cast<Size>(maintenance_work_mem) * 1024 / 4, Size{24} << 20);
}

struct ParallelReader;
// The table's reader is at its first row, or rewound. `device`, where not null, is told of the
// ring's memory.
ParallelReader* open_parallel_reader(TableReader* table, const ParallelRead& wanted,
                                     Executor* device);
uint32 most_block_rows(const ParallelReader* reader);
// Blocks that may be taken before one is given back: as many as were wanted, or fewer.
uint32 most_taken_blocks(const ParallelReader* reader);

// The next block, in any order, to be given back; false: there is none any more. Its position tells
// the order of the rows: that of the table.
bool next_block(ParallelReader* reader, RowBlock* block);
void give_back(ParallelReader* reader, const RowBlock& block);

// Once all blocks were read.
struct ParallelCounts {
    int64 rows;
    int64 nulls;
    bool odd;  // something that a device cannot order: see normalise, or the largest key
};
ParallelCounts close_parallel_reader(ParallelReader* reader);
// The same where nobody wants the rest.
void abandon_parallel_reader(ParallelReader* reader);

// Keys as ids, in their order. Null is the last, and has the id of the largest key, which is odd.
inline uint64 key_id(int64 key) {
    return static_cast<uint64>(key) ^ (uint64{1} << 63);
}
inline int64 id_key(uint64 id) {
    return static_cast<int64>(id ^ (uint64{1} << 63));
}
inline constexpr uint64 null_key_id = ~uint64{0};

}  // namespace pgwarp

extern "C" PGWARP_EXPORT void pgwarp_read_worker(struct dsm_segment* segment, struct shm_toc* toc);
