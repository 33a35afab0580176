// A build on several processes: the encoding pass, and measuring the recall curve.
#pragma once

#include "extension/ivfpq_encode.h"
#include "extension/ivfpq_sort.h"

namespace pgwarp {

// How many workers a build should ask for.
int build_workers(Relation heap, Relation index);

struct EncodeResult {
    EntrySort* sort;            // sorted, ready to be read
    const Neighbor* neighbors;  // (participants)(query_count)(neighbors_kept)
    uint32 participants;
    double heap_rows;
    double rows;
    int threads;                      // for this process, until the curve is measured; 0: as 1
    struct ParallelEncode* parallel;  // null: no worker took part
};

// Runs the pass over the table with up to `workers` helpers. Where `device` is not null, it
// encodes, and the helpers read the table for it.
EncodeResult encode_table(Relation heap, Relation index, IndexInfo* info, const EncodeInput& input,
                          int workers, Executor* device);
// measure_curve(), by all who took part in the pass. Where there are others, this process does
// something else first, while they begin.
struct Meanwhile {
    void (*work)(void* state);
    void* state;
};
RecallCurve measure_together(const EncodeResult& result, Relation index, const MetaPage& meta,
                             const CurveQuery* queries, uint32 count, const Meanwhile& meanwhile);
// Ends the sort, and the helpers' shared memory with it.
void end_encode_table(EncodeResult* result);

}  // namespace pgwarp

extern "C" PGWARP_EXPORT void pgwarp_build_worker(struct dsm_segment* segment, struct shm_toc* toc);
