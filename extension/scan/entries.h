// TIDs of entries, read from lists without their codes, for scans and batches.
//
// A list read after the snapshot was taken has all entries that the snapshot sees, so it is read
// once. In a trained index, VACUUM may move an entry from the pending list to another list after
// the pending list was read: it is found there again, never missed. The generation of the pending
// list tells whether an entry has moved. An untrained index has all its rows in the pending list,
// and it does not matter to a search of them whether VACUUM trains the index meanwhile.
#pragma once

#include <algorithm>
#include <span>

#include "kernels/conditions.h"
#include "extension/index/format.h"
#include "extension/scan/row_set.h"
#include "extension/scan/tid_set.h"

extern "C" {
#include "utils/rel.h"
#include "utils/snapshot.h"
}

namespace pgwarp {

// The entries of an index, as of some time after the snapshot was taken.
struct IndexEntries {
    TidSet* tids;     // sorted
    bool check_rows;  // some may have no attributes: the conditions were not checked on these
};

// Reads the entries of all lists that pass the conditions and are of these rows; null: of any. The
// set is opened in the current memory context, and spills beyond `bytes`. So do those below.
IndexEntries read_entries(Relation index, Snapshot snapshot, std::span<const Condition> conditions,
                          Size bytes, const RowSet* rows = nullptr);
// Of one list, sorted.
TidSet* read_list(Relation index, const MetaPage& meta, Snapshot snapshot, uint32 list, Size bytes);

struct PendingEntries {
    TidSet* tids;  // sorted; null: the list is empty
    uint32 generation;
};
// False: VACUUM trained the index meanwhile, and `meta` lacks its lists, or has others.
bool read_pending(Relation index, const MetaPage& meta, Snapshot snapshot, Size bytes,
                  PendingEntries* pending);
// Whether an entry may have moved to another list since the pending list was read.
bool have_moved(Relation index, const MetaPage& meta, const PendingEntries& pending);

// Drops entries that were read from the pending list, and have moved since. `entries` are sorted by
// TID. Returns how many are left.
template <typename Entry>
Size drop_moved(Relation index, const MetaPage& meta, const PendingEntries& pending, Entry* entries,
                Size count, uint64 Entry::*tid) {
    if (count == 0 || !have_moved(index, meta, pending)) return count;
    auto* tids = static_cast<uint64*>(palloc_extended(count * sizeof(uint64), MCXT_ALLOC_HUGE));
    auto* known = static_cast<bool*>(palloc_extended(count * sizeof(bool), MCXT_ALLOC_HUGE));
    std::transform(entries, entries + count, tids, [tid](const Entry& e) { return e.*tid; });
    find_tids(pending.tids, tids, count, known);
    Size kept = 0;
    for (Size i = 0; i < count; ++i)
        if (!known[i]) entries[kept++] = entries[i];
    pfree(known);
    pfree(tids);
    return kept;
}

}  // namespace pgwarp
