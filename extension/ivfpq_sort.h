// Sorting encoded rows by list and TID, within a bound of memory and across processes.
#pragma once

#include "extension/ivfpq_encode.h"

extern "C" {
#include "utils/tuplesort.h"
}

namespace pgwarp {

struct EntrySort;
// `memory` in kilobytes; `coordinate` as for any tuplesort, null where one process sorts.
EntrySort* begin_entry_sort(uint32 m, int memory, SortCoordinate coordinate);
// A RowSink's function; its state is the EntrySort.
void sort_row(void* sort, const EncodedRow& row);
void perform_entry_sort(EntrySort* sort);
// The next row, its code valid until the next call.
bool next_sorted_row(EntrySort* sort, EncodedRow* row);
void end_entry_sort(EntrySort* sort);

}  // namespace pgwarp
