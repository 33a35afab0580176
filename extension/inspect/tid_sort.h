// TIDs in order, with the attributes that an entry or a row has: what ivfpq_check compares an index
// and its table by.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "storage/block.h"
#include "utils/tuplesort.h"
}

namespace pgwarp {

struct TidRecord {
    uint64 tid;               // tid_number()
    BlockNumber block;        // entries: where they are in the index
    uint32 slot;              // entries: their number there
    const uint8* attributes;  // null: none, as for entries of the pending list
};

// Sorts within maintenance_work_mem, and spills to files beyond it.
struct TidSort {
    Tuplesortstate* sort;
    uint32 attribute_bytes;  // of one record; 0: it keeps TIDs only
    Datum read;              // the record read last
};

TidSort begin_tid_sort(uint32 attribute_bytes);
void put_record(TidSort* sort, const TidRecord& record);
// The record's attributes stay until the next call.
bool next_record(TidSort* sort, TidRecord* record);
void end_tid_sort(TidSort* sort);

}  // namespace pgwarp
