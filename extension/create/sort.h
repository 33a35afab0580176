// Sorting encoded rows by list and TID, within a memory limit and across processes. Rows without a
// code have the numbers behind those of the lists (encode.h).
#pragma once

#include "extension/create/encode.h"

extern "C" {
#include "utils/tuplesort.h"
}

namespace pgwarp {

struct EntrySort;
// `memory` in kilobytes; `coordinate` as for any tuplesort, null where one process sorts.
struct EntrySortShape {
    uint32 lists;
    uint32 m;
    uint32 attribute_bytes;
    uint32 refinement_bytes;
    int memory;
};
inline EntrySortShape sort_shape(const EncodeInput& input, int memory) {
    return {input.model.shape.lists, input.model.shape.m, input.row().other_bytes,
            static_cast<uint32>(input.refinement.bytes()), memory};
}
EntrySort* begin_entry_sort(const EntrySortShape& shape, SortCoordinate coordinate);
// A RowSink's function; its state is the EntrySort.
void sort_rows(void* sort, const EncodedRows& rows);
// Uses `threads` threads where one process has all rows.
void perform_entry_sort(EntrySort* sort, uint32 lists, int threads);
// The next row; its code, attributes and refinement are valid until the next call.
bool next_sorted_row(EntrySort* sort, EncodedRow* row);

// Only where all rows are in memory: list_starts() is the first row of each list and of those
// without a code, (row_groups() + 1), else null; sorted_row() reads any row, from any thread.
const uint64* list_starts(const EntrySort* sort);
EncodedRow sorted_row(const EntrySort* sort, uint64 at);
// The context that holds these rows. Threads that read them must belong to a child of it, which is
// deleted first.
MemoryContext entries_context(const EntrySort* sort);
void end_entry_sort(EntrySort* sort);

}  // namespace pgwarp
