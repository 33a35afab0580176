// Hints: the shared buffers in which this session last saw the pages of tables.
//
// Ranking reads rows all over a table, and each row costs about five cache misses: the buffer
// mapping table, the buffer header, the page header, the line pointer and the row. A hint skips the
// first, and allows prefetching the others while earlier rows are read. A wrong hint is found out
// once the buffer is pinned, and costs as much as a right one saves.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/tableam.h"
#include "storage/itemptr.h"
}

namespace pgwarp {

// Whether hints work for this table: a heap in shared buffers.
bool can_hint(Relation heap);

// Before a row is fetched: pins its page in `fetch`, if the hint is right.
void pin_hinted(Relation heap, IndexFetchTableData* fetch, const ItemPointerData& tid);
// Like pin_hinted(), without a buffer lookup; returns whether it pinned. Before 19 it does not
// bump the usage count: take the normal path now and then.
bool pin_known(Relation heap, IndexFetchTableData* fetch, const ItemPointerData& tid);
// After a row was fetched into `slot`: remembers the buffer of its page.
void note_hint(Relation heap, const TupleTableSlot* slot, const ItemPointerData& tid);

// Asks the kernel to read the page of a row that will be read soon, if it is not in shared buffers.
// The table has its block.
void read_ahead(Relation heap, const ItemPointerData& tid);

void prefetch_hint(Relation heap, const ItemPointerData& tid);
void prefetch_page(Relation heap, const ItemPointerData& tid);
void prefetch_tuple(Relation heap, const ItemPointerData& tid);

}  // namespace pgwarp
