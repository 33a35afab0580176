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

template <typename Item>
Item* add(Item** items, Size count, Size* room) {
    if (count == *room) {
        *room = std::max<Size>(8, 2 * *room);
        const Size bytes = *room * sizeof(Item);
        *items = static_cast<Item*>(*items ? repalloc_huge(*items, bytes)
                                           : MemoryContextAllocHuge(CurrentMemoryContext, bytes));
    }
    return &(*items)[count];
}

// The pages come in the order of their blocks.
class RowSetMaker {
  public:
    explicit RowSetMaker(RowSet* set) : set_(set) { add(&set->blocks, 0, &block_room_); }

    void add_page(const CompatBitmapPage& from) {
        RowSet::Blocks* of = blocks_of(from.block / 64);
        const uint64 bit = UINT64CONST(1) << from.block % 64;
        if (from.count < 0) {
            of->lossy |= bit;
            ++set_->lossy_pages;
            return;
        }
        of->exact |= bit;
        add_exact_page(from);
    }

    // A scan looks up the blocks of each entry. It needs no search among them if all of the table's
    // are there, which may take this many times the memory.
    void end() {
        constexpr Size times = 8;
        const Size all = (Size{set_->end} + 63) / 64;
        if (all > times * set_->block_count) return;
        const RowSet::Blocks* from = set_->blocks;
        auto* blocks = static_cast<RowSet::Blocks*>(MemoryContextAllocExtended(
            CurrentMemoryContext, std::max(all, Size{1}) * sizeof(RowSet::Blocks),
            MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
        for (Size i = 0; i < all; ++i) blocks[i].number = static_cast<uint32>(i);
        for (Size i = 0; i < set_->block_count; ++i) blocks[from[i].number] = from[i];
        pfree(set_->blocks);
        set_->blocks = blocks;
        set_->block_count = all;
        set_->whole = true;
    }

  private:
    RowSet::Blocks* blocks_of(uint32 number) {
        const Size count = set_->block_count;
        if (count > 0 && set_->blocks[count - 1].number == number) return &set_->blocks[count - 1];
        RowSet::Blocks* blocks = add(&set_->blocks, set_->block_count++, &block_room_);
        *blocks = {0, 0, static_cast<uint32>(set_->exact_pages), number};
        return blocks;
    }

    void add_exact_page(const CompatBitmapPage& from) {
        RowSet::Page* page = add(&set_->pages, static_cast<Size>(set_->exact_pages++), &page_room_);
        *page = {};
        page->block = from.block;
        for (int i = 0; i < from.count; ++i) {
            const uint32 bit = from.offsets[i] - 1u;
            page->rows[bit / 64] |= UINT64CONST(1) << bit % 64;
        }
        set_->exact_rows += from.count;
    }

    RowSet* set_;
    Size page_room_ = 0;
    Size block_room_ = 0;
};

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
    set->end = blocks;
    RowSetMaker maker(set);
    compat_walk_bitmap(bitmap, [&maker, blocks](const CompatBitmapPage& page) {
        // Pages that the table did not have yet, or has no longer, have no row for the snapshot.
        if (page.block < blocks) maker.add_page(page);
    });
    maker.end();
    return set;
}

TidSet* tids_of(const RowSet& set, Relation table, Size bytes) {
    TidSet* tids = open_tid_set(bytes);
    for (int64 i = 0; i < set.exact_pages; ++i)
        for (int w = 0; w < RowSet::words; ++w)
            for (uint64 left = set.pages[i].rows[w]; left != 0; left &= left - 1)
                put(tids, set.pages[i].block,
                    static_cast<uint32>(w * 64 + __builtin_ctzll(left) + 1));
    for (Size i = 0; i < set.block_count; ++i)
        for (uint64 left = set.blocks[i].lossy; left != 0; left &= left - 1) {
            const BlockNumber block =
                set.blocks[i].number * 64 + static_cast<uint32>(__builtin_ctzll(left));
            for (uint32 offset = 1, last = last_offset(table, block); offset <= last; ++offset)
                put(tids, block, offset);
        }
    sort_tid_set(tids);
    return tids;
}

}  // namespace pgwarp
