// Searches that are audited: a few of those whose effort the index chose (ivfpq.audit_every). When
// its first round is complete, a scan hands over what it searched for and what it found. The
// search is repeated elsewhere, with a far larger effort (audit/).
#pragma once

#include "kernels/common.h"
#include "extension/index/format.h"
#include "extension/scan/conditions.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

struct SearchToAudit {
    Relation index;
    const MetaPage* meta;  // with which the effort was chosen
    VectorView query;
    const Conditions* conditions;
    uint32 k;
    double target;
    uint32 probes;  // effort that was made
    int64 candidates;
    const double* distances;  // (found), of the first k rows, ascending
    uint32 found;
    double seconds;  // that the search took
    double every;    // one search in this many is audited
};

// Set where searches can be audited. Reports no errors.
extern void (*audit_search)(const SearchToAudit& search);

}  // namespace pgwarp
