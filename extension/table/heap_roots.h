// From row versions to the roots of their HOT chains: a scan of a table finds versions, an index
// has entries of roots.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/htup_details.h"
#include "storage/buf.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Whether a table has pages of PostgreSQL's own kind.
bool has_heap_pages(Relation table);

// Remembers the last page: ask for TIDs, as numbers, in their order.
struct RootFinder {
    Relation table;
    BlockNumber block = InvalidBlockNumber;
    Buffer buffer = InvalidBuffer;
    bool mapped = false;  // `roots` is of the page
    OffsetNumber roots[MaxHeapTuplesPerPage] = {};
};
// For a version that the caller's snapshot sees: it has the same root as long as the snapshot does.
uint64 root_of(RootFinder* finder, uint64 tid);
void end_root_finder(RootFinder* finder);

}  // namespace pgwarp
