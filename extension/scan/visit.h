// Visits the rows of candidates in the table, with prefetches.
#pragma once

#include <algorithm>

#include "extension/index/tid.h"
#include "extension/scan/state.h"
#include "extension/util/disk_reads.h"

extern "C" {
#include "miscadmin.h"
}

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
    constexpr Size hint_ahead = 12;
    constexpr Size page_ahead = 6;
    constexpr Size tuple_ahead = 2;
    const auto prefetch = [&](Size i, PrefetchStage stage) {
        if (i < count) prefetch_row(reader_of(s), number_tid(candidates[i].id), stage);
    };
    const Size read_ahead = rows_to_read_ahead(reader_of(s));
    DiskReads reads;
    for (Size i = 0; reads.needed() && i < std::min(count, read_ahead); ++i)
        prefetch(i, PrefetchStage::read);
    for (Size i = 0; i < std::min(count, hint_ahead); ++i) prefetch(i, PrefetchStage::hint);
    for (Size i = 0; i < count; ++i) {
        CHECK_FOR_INTERRUPTS();
        if (reads.needed()) prefetch(i + read_ahead, PrefetchStage::read);
        prefetch(i + hint_ahead, PrefetchStage::hint);
        prefetch(i + page_ahead, PrefetchStage::page);
        prefetch(i + tuple_ahead, PrefetchStage::tuple);
        const StoredVector row = read_row(reader_of(s), number_tid(candidates[i].id));
        const bool passes = row && visible(candidates[i], row_distance(s, row));
        note_visit(s, candidates[i].distance, passes);
    }
}

}  // namespace pgwarp
