// Visits the rows of candidates in the table, with prefetches.
#pragma once

#include "extension/index/tid.h"
#include "extension/scan/row_walk.h"
#include "extension/scan/state.h"
#include "extension/util/disk_reads.h"

namespace pgwarp {

// Prefetches rows of several scans that are visited next: for_each(prefetch) calls prefetch(s, tid)
// for each of them.
template <typename ForEach>
void prefetch_rows(ForEach for_each) {
    DiskReads reads;
    for (const PrefetchStage stage :
         {PrefetchStage::hint, PrefetchStage::read, PrefetchStage::page, PrefetchStage::tuple})
        if (stage != PrefetchStage::read || reads.needed())
            for_each([stage](ScanState* s, uint64 tid) {
                prefetch_row(reader_of(s), number_tid(tid), stage);
            });
}

// Reads the rows of candidates, which are in the order of their TIDs, and calls `visible` with each
// candidate that has a visible row, and the row's distance; it returns whether the row is wanted.
// The row is the one that was read last.
template <typename Visible>
void visit_rows(ScanState* s, const Candidate* candidates, Size count, Visible visible) {
    if (count == 0) return;
    visit_in_order(
        reader_of(s), count, [candidates](Size i) { return candidates[i].id; },
        [&](Size i) {
            const StoredVector row = read_row(reader_of(s), number_tid(candidates[i].id));
            const bool passes = row && visible(candidates[i], row_distance(s, row));
            note_visit(s, candidates[i].distance, passes);
        });
}

}  // namespace pgwarp
