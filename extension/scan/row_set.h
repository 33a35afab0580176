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
    // Of 64 blocks: a bit for each that has a page, and how many exact pages are before theirs.
    struct Blocks {
        uint64 exact;
        uint64 lossy;
        uint32 before;
        uint32 number;  // of the first block, / 64
    };
    Page* pages;       // (exact_pages), in the order of their blocks
    Blocks* blocks;    // (block_count), in their order: those that have a page
    Size block_count;  // where it is 0, there is room for one
    bool whole;        // all of the table are there: blocks[i].number is i
    BlockNumber end;   // of the table
    int64 exact_pages;
    int64 lossy_pages;
    int64 exact_rows;  // on exact pages
};
static_assert(sizeof(RowSet::Blocks) == 24);

// Allocated in the current memory context. `blocks`: of the table.
RowSet* make_row_set(TIDBitmap* bitmap, BlockNumber blocks);

// Where these 64 blocks are, or those before them.
inline Size place_of_blocks(const RowSet& set, uint32 number) {
    if (set.whole) return number;
    Size first = 0;
    for (Size left = set.block_count; left > 1;) {
        const Size half = left / 2;
        first += set.blocks[first + half].number <= number ? half : 0;
        left -= half;
    }
    return first;
}

// Which of the 64 blocks around this one are in the set; `known`: none is.
inline const RowSet::Blocks& blocks_around(const RowSet& set, BlockNumber block, bool* known) {
    const Size place = place_of_blocks(set, block / 64);
    *known = place < set.block_count && set.blocks[place].number == block / 64;
    return set.blocks[*known ? place : 0];
}

inline bool has_row(const RowSet& set, const ItemPointerData& tid) {
    const BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tid);
    bool known;
    const RowSet::Blocks& blocks = blocks_around(set, block, &known);
    if (!known) return false;
    const uint64 bit = UINT64CONST(1) << block % 64;
    if (!(blocks.exact & bit)) return blocks.lossy & bit;
    const auto page =
        blocks.before + static_cast<uint64>(__builtin_popcountll(blocks.exact & (bit - 1)));
    const uint32 row = ItemPointerGetOffsetNumberNoCheck(&tid) - 1u;
    return row < MaxHeapTuplesPerPage && (set.pages[page].rows[row / 64] >> row % 64 & 1);
}

// Whether the set, which is not empty, has rows on the TID's page, without a branch where it is
// whole: most TIDs of a list end here.
inline uint64 has_page(const RowSet& set, const ItemPointerData& tid) {
    const BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tid);
    bool known;
    const RowSet::Blocks& blocks = blocks_around(set, block, &known);
    return known & (blocks.exact | blocks.lossy) >> block % 64;
}

inline bool is_empty(const RowSet& set) {
    return set.exact_pages + set.lossy_pages == 0;
}

// The TIDs as a sorted set: of lossy pages, all that the table has there.
TidSet* tids_of(const RowSet& set, Relation table, Size bytes);

}  // namespace pgwarp
