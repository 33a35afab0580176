// An exact search: ivfpq.target_recall = 1, or a query whose distances codes cannot tell.
//
// A code does not bound the distance of its row. The error of a code, |x - x'|, is not stored with
// the entry, and without it neither x' nor the list tells how near x may be. So an exact search
// ranks the rows of all entries by their vectors, and codes are not read. Conditions on attributes
// still exclude entries before their rows are read.
#pragma once

#include <span>

#include "kernels/conditions.h"
#include "extension/index/format.h"
#include "extension/scan/tid_set.h"

extern "C" {
#include "utils/rel.h"
#include "utils/snapshot.h"
}

namespace pgwarp {

// Whether the settings ask for exact searches of this index. Settings that bound the effort
// (ivfpq.probes, candidates, max_probes below the number of lists, max_scan_tuples) come first.
bool searches_exactly(const MetaPage& meta);

// The entries of an index, as of some time after the snapshot was taken.
struct IndexEntries {
    TidSet* tids;     // sorted
    bool check_rows;  // some may have no attributes: the conditions were not checked on these
};

// Reads the entries of all lists that pass the conditions. The set is opened in the current memory
// context, and spills beyond `bytes`.
IndexEntries read_entries(Relation index, Snapshot snapshot, std::span<const Condition> conditions,
                          Size bytes);

}  // namespace pgwarp
