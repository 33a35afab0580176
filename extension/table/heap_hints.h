// Where the pages of tables were in shared buffers when this session saw them last.
//
// Ranking reads rows all over a table, and each waits for memory some five times: for the table of
// buffers, the buffer's header, the page's, the line pointer and the row. A hint leads past the
// first, and lets the others come while earlier rows are read. A wrong hint costs what it saved:
// what is in a buffer is known once it is pinned.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/tableam.h"
#include "storage/itemptr.h"
}

namespace pgwarp {

// Whether the table has pages as the functions below expect them: a heap in shared buffers.
bool can_hint(Relation heap);

// Before a row is fetched: has its page pinned, where a hint was right.
void pin_hinted(Relation heap, IndexFetchTableData* fetch, const ItemPointerData& tid);
// The same for who must not look the page up: whether it is pinned. Nothing tells PostgreSQL that
// the page is in use: now and then the caller has to go another way, which does.
bool pin_known(Relation heap, IndexFetchTableData* fetch, const ItemPointerData& tid);
// After it was fetched.
void note_hint(Relation heap, const TupleTableSlot* slot, const ItemPointerData& tid);

void prefetch_hint(Relation heap, const ItemPointerData& tid);
void prefetch_page(Relation heap, const ItemPointerData& tid);
void prefetch_tuple(Relation heap, const ItemPointerData& tid);

}  // namespace pgwarp
