// Writing all lists of a new index from entries that are sorted in memory.
#pragma once

#include "extension/create/bulk.h"
#include "extension/create/sort.h"

namespace pgwarp {

// Has the same result as bulk_entry() for each row, but threads fill the pages, a batch at a time,
// and this process writes them. list_starts() of the sort must not be null. `done` is called from
// time to time with the number of rows written.
void bulk_sorted_lists(BulkWriter* writer, const EntrySort* sort, int threads,
                       void (*done)(int64 rows));

}  // namespace pgwarp
