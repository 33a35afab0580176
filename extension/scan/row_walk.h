// Walks rows of a table in the order of their TIDs, with prefetches.
#pragma once

#include "extension/index/tid.h"
#include "extension/scan/rows.h"
#include "extension/scan/tid_set.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

// Calls visit(tid) for each TID of a sorted set. Returns how many there are.
template <typename Visit>
Size walk_rows(RowReader* reader, TidSet* tids, Visit&& visit) {
    constexpr Size ahead = 12;
    uint64 coming[ahead];
    Size begin = 0;
    Size end = 0;
    bool more = true;
    rewind_tid_set(tids);
    while (true) {
        CHECK_FOR_INTERRUPTS();
        while (more && end - begin < ahead) {
            more = next_tid(tids, &coming[end % ahead]);
            if (!more) break;
            prefetch_row(reader, number_tid(coming[end++ % ahead]), PrefetchStage::page);
        }
        if (begin == end) return end;
        visit(coming[begin++ % ahead]);
    }
}

}  // namespace pgwarp
