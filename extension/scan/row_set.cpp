#include "extension/scan/row_set.h"

#include <algorithm>

#include "extension/index/tid.h"

extern "C" {
#include "miscadmin.h"
#include "storage/itemptr.h"
}

namespace pgwarp {

namespace {

void add_lossy_page(RowSet* set, BlockNumber block, BlockNumber blocks) {
    // The bitmap may have pages that the table no longer has.
    if (block >= blocks) return;
    if (!set->lossy) {
        const Size bytes = (Size{blocks} + 63) / 64 * sizeof(uint64);
        set->lossy = static_cast<uint64*>(MemoryContextAllocExtended(
            CurrentMemoryContext, bytes, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
        set->lossy_end = blocks;
    }
    set->lossy[block / 64] |= UINT64CONST(1) << block % 64;
    ++set->lossy_pages;
}

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

void hash_pages(RowSet* set) {
    int bits = 4;
    while ((INT64CONST(1) << bits) < 2 * set->exact_pages) ++bits;
    const Size count = Size{1} << bits;
    set->shift = 64 - bits;
    set->slots = static_cast<RowSet::Slot*>(
        MemoryContextAllocHuge(CurrentMemoryContext, count * sizeof(RowSet::Slot)));
    std::fill_n(set->slots, count, RowSet::Slot{InvalidBlockNumber, 0});
    for (uint32 i = 0; i < set->exact_pages; ++i) {
        uint64 at = slot_of(*set, set->pages[i].block);
        while (BlockNumberIsValid(set->slots[at].block)) at = (at + 1) & (count - 1);
        set->slots[at] = {set->pages[i].block, i};
    }
}

void put(TidSet* tids, BlockNumber block, uint32 offset) {
    ItemPointerData tid;
    ItemPointerSet(&tid, block, static_cast<OffsetNumber>(offset));
    put_tid(tids, tid_number(tid));
}

}  // namespace

RowSet* make_row_set(TIDBitmap* bitmap, BlockNumber blocks) {
    auto* set = static_cast<RowSet*>(palloc0(sizeof(RowSet)));
    Size room = 0;
    compat_walk_bitmap(bitmap, [&](const CompatBitmapPage& page) {
        if (page.count < 0)
            add_lossy_page(set, page.block, blocks);
        else
            add_exact_page(set, &room, page);
    });
    hash_pages(set);
    return set;
}

TidSet* tids_of(const RowSet& set, Size bytes) {
    TidSet* tids = open_tid_set(bytes);
    for (int64 i = 0; i < set.exact_pages; ++i)
        for (int w = 0; w < RowSet::words; ++w)
            for (uint64 left = set.pages[i].rows[w]; left != 0; left &= left - 1)
                put(tids, set.pages[i].block,
                    static_cast<uint32>(w * 64 + __builtin_ctzll(left) + 1));
    for (BlockNumber block = 0; block < set.lossy_end; ++block)
        if (set.lossy[block / 64] >> block % 64 & 1)
            for (uint32 offset = 1; offset <= MaxHeapTuplesPerPage; ++offset)
                put(tids, block, offset);
    sort_tid_set(tids);
    return tids;
}

}  // namespace pgwarp
