// Sorting encoded rows by list and TID, within a bound of memory and across processes.
#pragma once

#include "extension/build/encode.h"

extern "C" {
#include "utils/tuplesort.h"
}

namespace pgwarp {

struct EntrySort;
// `memory` in kilobytes; `coordinate` as for any tuplesort, null where one process sorts.
EntrySort* begin_entry_sort(uint32 m, int memory, SortCoordinate coordinate);
// A RowSink's function; its state is the EntrySort.
void sort_rows(void* sort, const EncodedRows& rows);
// With so many threads, where one process has all rows.
void perform_entry_sort(EntrySort* sort, uint32 lists, int threads);
// The next row, its code valid until the next call.
bool next_sorted_row(EntrySort* sort, EncodedRow* row);

// Where all rows are in memory: where each list's begin, (lists + 1), else null; and any of them,
// which threads may ask for.
const uint64* list_starts(const EntrySort* sort);
EncodedRow sorted_row(const EntrySort* sort, uint64 at);
// The memory that such rows are in. What reads them in threads belongs to a child of it, which ends
// before it.
MemoryContext entries_context(const EntrySort* sort);
// The lists of some TIDs, which need not be there; `lists` has PG_UINT32_MAX for those.
void find_lists(const EntrySort* sort, const uint64* tids, uint32 count, int threads,
                uint32* lists);
void end_entry_sort(EntrySort* sort);

}  // namespace pgwarp
