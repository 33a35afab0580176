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
    // Of 64 blocks: a bit for each that has a page, and how many pages are before theirs.
    struct Blocks {
        uint64 exact;
        uint64 lossy;
        uint64 before;
    };
    Page* pages;     // (exact_pages), in the order of their blocks
    Blocks* blocks;  // (end / 64, rounded up)
    BlockNumber end;
    int64 exact_pages;
    int64 lossy_pages;
    int64 exact_rows;  // on exact pages
};

// Allocated in the current memory context. `blocks`: of the table.
RowSet* make_row_set(TIDBitmap* bitmap, BlockNumber blocks);

inline bool has_row(const RowSet& set, const ItemPointerData& tid) {
    const BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tid);
    if (block >= set.end) return false;
    const RowSet::Blocks& blocks = set.blocks[block / 64];
    const uint64 bit = UINT64CONST(1) << block % 64;
    if (!(blocks.exact & bit)) return blocks.lossy & bit;
    const auto page =
        blocks.before + static_cast<uint64>(__builtin_popcountll(blocks.exact & (bit - 1)));
    const uint32 row = ItemPointerGetOffsetNumberNoCheck(&tid) - 1u;
    return row < MaxHeapTuplesPerPage && (set.pages[page].rows[row / 64] >> row % 64 & 1);
}

// Whether the set has rows on the TID's page, without a branch: most TIDs of a list end here.
inline uint64 has_page(const RowSet& set, const ItemPointerData& tid) {
    const BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tid);
    const BlockNumber known = block < set.end ? block : 0;
    const RowSet::Blocks& blocks = set.blocks[known / 64];
    return (blocks.exact | blocks.lossy) >> known % 64 & 1;
}

inline bool is_empty(const RowSet& set) {
    return set.exact_pages + set.lossy_pages == 0;
}

// The TIDs as a sorted set: of lossy pages, all that the table has there.
TidSet* tids_of(const RowSet& set, Relation table, Size bytes);

}  // namespace pgwarp
