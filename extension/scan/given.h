// Rows that a scan need not search for: a join has found them, for many queries at once (join/).
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/genam.h"
#include "access/relscan.h"
#include "storage/itemptr.h"
}

namespace pgwarp {

// TIDs of index entries, nearest first. They are all that the plan fetches from the scan, or all
// that the index has.
struct GivenRows {
    ItemPointerData* tids;
    Size count;
};

// Asked before a scan begins; null: there are no such rows. Returns false unless the rows are those
// of the scan's snapshot, keys and query. Allocates in the current memory context.
extern bool (*give_rows)(IndexScanDesc scan, GivenRows* rows);

}  // namespace pgwarp
