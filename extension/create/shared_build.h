// What the processes of a parallel build share: its dynamic shared memory, piece by piece.
#pragma once

#include "extension/create/encode.h"
#include "extension/create/tasks.h"
#include "extension/table/block_pool.h"

extern "C" {
#include "access/parallel.h"
#include "access/relscan.h"
#include "executor/instrument.h"
}

namespace pgwarp {

// The table and the index that is built on it.
struct BuildTable {
    Relation heap;
    Relation index;
    IndexInfo* info;
};

// In dynamic shared memory. The parallel scan descriptor follows at the next BUFFERALIGN boundary.
struct SharedBuild {
    // Set by the leader before the workers start:
    Oid heap;
    Oid index;
    bool concurrent;
    int participants;
    int sort_memory;  // per participant, in kilobytes
    QuantizerShape shape;
    uint32 rotated_from;  // dimensions of the table's vectors; 0: no rotation
    uint32 parents;       // of lists
    uint32 query_count;
    RefinementLayout refinement;

    ConditionVariable done_condition;
    slock_t mutex;
    // Under `mutex`:
    int done;
    double heap_rows;
    double rows;
    bool broken_hot_chain;  // a participant met one: see IndexInfo

    SharedTasks tasks;  // used once all rows are encoded
};

// Where the pieces are in this process.
struct BuildMemory {
    SharedBuild* shared;
    Sharedsort* sort;
    float* model;               // the model, then the queries: see input_of()
    Neighbor* neighbors;        // (participants)(kept_neighbors), the leader's first
    const char* query_text;     // null: none
    WalUsage* wal_usage;        // (workers)
    BufferUsage* buffer_usage;  // (workers)
    BlockPool* pool;            // null: the workers encode
    SharedCurve* curve;
};

// What the leader makes shared memory for.
struct BuildMemoryPlan {
    BuildTable table;
    const EncodeInput* input;
    Snapshot snapshot;
    int workers;
    bool has_pool;  // a device encodes
    PoolShape pool;
};

// Bytes of the pool; 0: there is none.
Size pool_bytes(const BuildMemoryPlan& plan);
// Before InitializeParallelDSM().
void estimate_build_memory(ParallelContext* context, const BuildMemoryPlan& plan);
// After it, before the workers start.
BuildMemory make_build_memory(ParallelContext* context, const BuildMemoryPlan& plan);
// For a worker.
BuildMemory find_build_memory(shm_toc* toc);

ParallelTableScanDesc scan_of(SharedBuild* shared);
EncodeInput input_of(const SharedBuild* shared, const float* model, Relation index);

// Called once by each participant, when it has read its share of the table.
void report_share(SharedBuild* shared, double heap_rows, double rows, const IndexInfo* info);
void wait_for_participants(SharedBuild* shared, int participants);

}  // namespace pgwarp
