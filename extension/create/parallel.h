// A build by several processes: the encoding pass, logging pages, and measuring the recall curve.
#pragma once

#include "extension/create/bulk.h"
#include "extension/create/shared_build.h"
#include "extension/create/sort.h"

namespace pgwarp {

// How many workers a build should request.
int build_workers(Relation heap, Relation index);

struct EncodeResult {
    EntrySort* sort;            // sorted, ready to be read
    const Neighbor* neighbors;  // (participants)(kept_neighbors)
    uint32 participants;
    double heap_rows;
    double rows;
    int threads;                      // threads for the leader until the curve is measured; 0: as 1
    struct ParallelEncode* parallel;  // null: no worker took part
};

// Runs the pass over the table with up to `workers` workers. Where `device` is not null, it
// encodes, and the workers read the table for it.
EncodeResult encode_table(const BuildTable& table, const EncodeInput& input, int workers,
                          Executor* device);
// These do nothing, or work in the leader alone, without workers. log_together() has the workers
// log list pages as they are written; end_of_pages() tells them that no more will come and that the
// index can be read. measure_together() is measure_curve() by all participants of the pass; all
// pages are logged when it returns.
void log_together(const EncodeResult& result, BulkWriter* writer);
void end_of_pages(const EncodeResult& result);
MeasuredCurve measure_together(const EncodeResult& result, Relation index, const MetaPage& meta,
                               const CurveQuery* queries, uint32 count);
// Ends the sort, the workers and their shared memory.
void end_encode_table(EncodeResult* result);

}  // namespace pgwarp

extern "C" PGWARP_EXPORT void pgwarp_build_worker(struct dsm_segment* segment, struct shm_toc* toc);
