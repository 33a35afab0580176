// The rows of a bitmap scan of other indexes, as a condition of a scan: an entry passes if its TID
// is among them.
//
// Entries of all indexes of a table name the root of a HOT chain, so the TIDs are comparable. Of a
// page that the bitmap has lossily, all TIDs pass. The bitmap was read after the snapshot was
// taken, as the lists are: a row that the snapshot sees keeps its TID until the query ends.
#pragma once

#include "extension/compat.h"
#include "extension/scan/tid_set.h"

extern "C" {
#include "access/htup_details.h"
#include "nodes/tidbitmap.h"
}

namespace pgwarp {

struct RowSet {
    static constexpr int words = (MaxHeapTuplesPerPage + 63) / 64;
    struct Page {
        uint64 rows[words];  // a bit for each offset, less one
        BlockNumber block;
    };
    struct Slot {
        BlockNumber block;
        uint32 page;
    };
    Page* pages;  // (exact_pages), in the order of their blocks
    Slot* slots;  // (1 << 64 - shift), by hash
    int shift;
    uint64* lossy;  // a bit for each block below lossy_end; null: none
    BlockNumber lossy_end;
    int64 exact_pages;
    int64 lossy_pages;
    int64 exact_rows;  // on exact pages
};

// Allocated in the current memory context. `blocks`: of the table.
RowSet* make_row_set(TIDBitmap* bitmap, BlockNumber blocks);

inline uint64 slot_of(const RowSet& set, BlockNumber block) {
    return (block * UINT64CONST(0x9E3779B97F4A7C15)) >> set.shift;
}

inline bool has_row(const RowSet& set, const ItemPointerData& tid) {
    const BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tid);
    const uint64 mask = (UINT64CONST(1) << (64 - set.shift)) - 1;
    for (uint64 at = slot_of(set, block); BlockNumberIsValid(set.slots[at].block);
         at = (at + 1) & mask) {
        if (set.slots[at].block != block) continue;
        const uint32 bit = ItemPointerGetOffsetNumberNoCheck(&tid) - 1u;
        return bit < MaxHeapTuplesPerPage &&
               (set.pages[set.slots[at].page].rows[bit / 64] >> bit % 64 & 1);
    }
    return block < set.lossy_end && (set.lossy[block / 64] >> block % 64 & 1);
}

inline bool is_empty(const RowSet& set) {
    return set.exact_pages + set.lossy_pages == 0;
}

// The TIDs as a sorted set: of lossy pages, all that there may be.
TidSet* tids_of(const RowSet& set, Size bytes);

}  // namespace pgwarp
