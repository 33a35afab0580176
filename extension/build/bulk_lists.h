// Writing all lists of a new index from entries that are sorted in memory.
#pragma once

#include "extension/build/bulk.h"
#include "extension/build/sort.h"

namespace pgwarp {

// What bulk_entry() makes of the rows one by one: threads fill the pages, some at a time, and this
// process puts them into the index. list_starts() of the sort is not null. `done` is told how many
// rows are written, now and then.
void bulk_sorted_lists(BulkWriter* writer, const EntrySort* sort, int threads,
                       void (*done)(int64 rows));

}  // namespace pgwarp
