#include "extension/scan/row_set.h"

#include <algorithm>

#include "extension/index/tid.h"

extern "C" {
#include "access/heapam.h"
#include "access/tableam.h"
#include "miscadmin.h"
#include "storage/itemptr.h"
}

namespace pgwarp {

namespace {

void add_exact_page(RowSet* set, Size* room, const CompatBitmapPage& from) {
    if (static_cast<Size>(set->exact_pages) == *room) {
        *room = std::max<Size>(64, 2 * *room);
        const Size bytes = *room * sizeof(RowSet::Page);
        set->pages = static_cast<RowSet::Page*>(
            set->pages ? repalloc_huge(set->pages, bytes)
                       : MemoryContextAllocHuge(CurrentMemoryContext, bytes));
    }
    RowSet::Page* page = &set->pages[set->exact_pages++];
    *page = {};
    page->block = from.block;
    for (int i = 0; i < from.count; ++i) {
        const uint32 bit = from.offsets[i] - 1u;
        page->rows[bit / 64] |= UINT64CONST(1) << bit % 64;
    }
    set->exact_rows += from.count;
}

void put(TidSet* tids, BlockNumber block, uint32 offset) {
    ItemPointerData tid;
    ItemPointerSet(&tid, block, static_cast<OffsetNumber>(offset));
    put_tid(tids, tid_number(tid));
}

// No row that the snapshot sees lies behind it.
uint32 last_offset(Relation table, BlockNumber block) {
    if (table->rd_tableam != GetHeapamTableAmRoutine()) return MaxHeapTuplesPerPage;
    CHECK_FOR_INTERRUPTS();
    const Buffer buffer = ReadBuffer(table, block);
    LockBuffer(buffer, BUFFER_LOCK_SHARE);
    const uint32 last = PageGetMaxOffsetNumber(BufferGetPage(buffer));
    UnlockReleaseBuffer(buffer);
    return last;
}

}  // namespace

RowSet* make_row_set(TIDBitmap* bitmap, BlockNumber blocks) {
    auto* set = static_cast<RowSet*>(palloc0(sizeof(RowSet)));
    const Size count = (Size{blocks} + 63) / 64;
    set->blocks = static_cast<RowSet::Blocks*>(MemoryContextAllocExtended(
        CurrentMemoryContext, std::max(count, Size{1}) * sizeof(RowSet::Blocks),
        MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    set->end = blocks;
    Size room = 0;
    compat_walk_bitmap(bitmap, [&](const CompatBitmapPage& page) {
        // Pages that the table did not have yet, or has no longer, have no row for the snapshot.
        if (page.block >= blocks) return;
        RowSet::Blocks& of = set->blocks[page.block / 64];
        const uint64 bit = UINT64CONST(1) << page.block % 64;
        if (page.count < 0) {
            of.lossy |= bit;
            ++set->lossy_pages;
            return;
        }
        of.exact |= bit;
        add_exact_page(set, &room, page);
    });
    uint64 before = 0;
    for (Size i = 0; i < count; ++i) {
        set->blocks[i].before = before;
        before += static_cast<uint64>(__builtin_popcountll(set->blocks[i].exact));
    }
    return set;
}

TidSet* tids_of(const RowSet& set, Relation table, Size bytes) {
    TidSet* tids = open_tid_set(bytes);
    for (int64 i = 0; i < set.exact_pages; ++i)
        for (int w = 0; w < RowSet::words; ++w)
            for (uint64 left = set.pages[i].rows[w]; left != 0; left &= left - 1)
                put(tids, set.pages[i].block,
                    static_cast<uint32>(w * 64 + __builtin_ctzll(left) + 1));
    for (BlockNumber block = 0; set.lossy_pages > 0 && block < set.end; ++block)
        if (set.blocks[block / 64].lossy >> block % 64 & 1)
            for (uint32 offset = 1, last = last_offset(table, block); offset <= last; ++offset)
                put(tids, block, offset);
    sort_tid_set(tids);
    return tids;
}

}  // namespace pgwarp
