// Numbers of TIDs, however many: what memory has no room for goes to temporary files, as with
// candidate_order.h.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

struct TidSet;

// `bytes`: of memory.
TidSet* open_tid_set(Size bytes);
void put_tid(TidSet* set, uint64 tid);

// To be read; nothing is put after it.
void sort_tid_set(TidSet* set);
bool is_empty(const TidSet* set);

// Reads it in order, each TID once, from the beginning after every call of rewind.
void rewind_tid_set(TidSet* set);
bool next_tid(TidSet* set, uint64* tid);

// Marks those of some TIDs that the set has. They are sorted.
void find_tids(TidSet* set, const uint64* tids, Size count, bool* found);

void close_tid_set(TidSet* set);

}  // namespace pgwarp
