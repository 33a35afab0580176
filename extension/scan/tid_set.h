// A set of any number of TIDs, as numbers (index/tid.h). TIDs that do not fit in memory spill to
// temporary files, as in candidate_order.h.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

struct TidSet;

// `bytes`: of memory to use before spilling.
TidSet* open_tid_set(Size bytes);
void put_tid(TidSet* set, uint64 tid);

// Required before reading; no TID may be put afterwards.
void sort_tid_set(TidSet* set);
bool is_empty(const TidSet* set);

// next_tid() returns the TIDs in order, each once; rewind_tid_set() goes back to the first.
void rewind_tid_set(TidSet* set);
bool next_tid(TidSet* set, uint64* tid);

// Sets found[i] to whether the set has tids[i]. `tids` must be sorted.
void find_tids(TidSet* set, const uint64* tids, Size count, bool* found);

void close_tid_set(TidSet* set);

}  // namespace pgwarp
