#include <algorithm>

#include "extension/scan/tid_set.h"

extern "C" {
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/tuplesort.h"
}

namespace pgwarp {

struct TidSet {
    MemoryContext context;
    Size bytes;
    uint64* tids;  // in memory, until `bytes` are full
    Size count;
    Size room;
    Size next;
    Tuplesortstate* sort;  // after that, has all TIDs
    uint64 last;           // read from `sort` last, to drop duplicates; no TID is 0
};

namespace {

void move_to_sort(TidSet* set) {
    const MemoryContext before = MemoryContextSwitchTo(set->context);
    const int kilobytes = std::max(64, static_cast<int>(set->bytes / 1024));
    set->sort = compat_begin_rereadable_datum_sort(INT8OID, Int8LessOperator, kilobytes);
    for (Size i = 0; i < set->count; ++i)
        tuplesort_putdatum(set->sort, Int64GetDatum(static_cast<int64>(set->tids[i])), false);
    pfree(set->tids);
    set->tids = nullptr;
    MemoryContextSwitchTo(before);
}

}  // namespace

TidSet* open_tid_set(Size bytes) {
    auto* set = static_cast<TidSet*>(palloc0(sizeof(TidSet)));
    set->context = CurrentMemoryContext;
    set->bytes = bytes;
    return set;
}

void put_tid(TidSet* set, uint64 tid) {
    const Size most = std::max<Size>(set->bytes / sizeof(uint64), 64);
    if (!set->sort && set->count == set->room) {
        if (set->room == most) {
            move_to_sort(set);
        } else {
            set->room = std::min(most, std::max<Size>(64, 2 * set->room));
            const Size bytes = set->room * sizeof(uint64);
            set->tids =
                static_cast<uint64*>(set->tids ? repalloc_huge(set->tids, bytes)
                                               : MemoryContextAllocHuge(set->context, bytes));
        }
    }
    if (set->sort)
        tuplesort_putdatum(set->sort, Int64GetDatum(static_cast<int64>(tid)), false);
    else
        set->tids[set->count] = tid;
    ++set->count;
}

void sort_tid_set(TidSet* set) {
    if (set->sort) {
        tuplesort_performsort(set->sort);
    } else {
        std::sort(set->tids, set->tids + set->count);
        set->count = static_cast<Size>(std::unique(set->tids, set->tids + set->count) - set->tids);
    }
}

bool is_empty(const TidSet* set) {
    return set->count == 0;
}

void rewind_tid_set(TidSet* set) {
    set->next = 0;
    set->last = 0;
    if (set->sort) tuplesort_rescan(set->sort);
}

bool next_tid(TidSet* set, uint64* tid) {
    if (!set->sort) {
        if (set->next == set->count) return false;
        *tid = set->tids[set->next++];
        return true;
    }
    Datum value;
    bool is_null;
    do {
        if (!compat_get_datum(set->sort, &value, &is_null)) return false;
        *tid = static_cast<uint64>(DatumGetInt64(value));
    } while (*tid == set->last);
    set->last = *tid;
    return true;
}

void find_tids(TidSet* set, const uint64* tids, Size count, bool* found) {
    if (!set->sort) {
        for (Size i = 0; i < count; ++i)
            found[i] = std::binary_search(set->tids, set->tids + set->count, tids[i]);
        return;
    }
    rewind_tid_set(set);
    uint64 at = 0;
    for (Size i = 0; i < count; ++i) {
        while (at < tids[i])
            if (!next_tid(set, &at)) at = UINT64_MAX;
        found[i] = at == tids[i];
        if (i % 1024 == 0) CHECK_FOR_INTERRUPTS();
    }
}

void close_tid_set(TidSet* set) {
    if (set->sort) tuplesort_end(set->sort);
    if (set->tids) pfree(set->tids);
    pfree(set);
}

}  // namespace pgwarp
