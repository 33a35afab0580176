// An exact search: ivfpq.target_recall = 1, or a query whose distances codes cannot tell.
//
// A code does not bound the distance of its row. The error of a code, |x - x'|, is not stored with
// the entry, and without it neither x' nor the list tells how near x may be. So an exact search
// ranks the rows of all entries by their vectors, and codes are not read. Conditions on attributes
// still exclude entries before their rows are read.
#pragma once

#include "extension/index/format.h"

namespace pgwarp {

// Whether the settings ask for exact searches of this index. Settings that bound the effort
// (ivfpq.probes, candidates, max_probes below the number of lists, max_scan_tuples) come first.
bool searches_exactly(const MetaPage& meta);

}  // namespace pgwarp
