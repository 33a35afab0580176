// Visits rows of a table in the order of their TIDs, with prefetches.
#pragma once

#include <algorithm>

#include "extension/index/tid.h"
#include "extension/scan/rows.h"
#include "extension/scan/tid_set.h"
#include "extension/util/disk_reads.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

// Calls visit(i) for the rows tid_at(i), i < count, one after the other. Equal TIDs come together.
template <typename TidAt, typename Visit>
void visit_in_order(RowReader* reader, Size count, TidAt tid_at, Visit visit) {
    constexpr Size hint_ahead = 12;
    constexpr Size page_ahead = 6;
    constexpr Size tuple_ahead = 2;
    const auto prefetch = [&](Size i, PrefetchStage stage) {
        if (i < count && (i == 0 || tid_at(i) != tid_at(i - 1)))
            prefetch_row(reader, number_tid(tid_at(i)), stage);
    };
    const Size read_ahead = rows_to_read_ahead(reader);
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
        visit(i);
    }
}

// Calls visit(tid) for each TID of a sorted set. Returns how many there are.
template <typename Visit>
Size walk_rows(RowReader* reader, TidSet* tids, Visit visit) {
    uint64 some[1024];
    Size all = 0;
    rewind_tid_set(tids);
    while (true) {
        Size count = 0;
        while (count < lengthof(some) && next_tid(tids, &some[count])) ++count;
        visit_in_order(
            reader, count, [&some](Size i) { return some[i]; }, [&](Size i) { visit(some[i]); });
        all += count;
        if (count < lengthof(some)) return all;
    }
}

}  // namespace pgwarp
