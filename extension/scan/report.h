// What a scan did, for the people who ask: ivfpq_last_scan(), and the counters of pg_stat_pgwarp.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

struct ScanReport {
    int32 rounds;
    bool by_service;  // the first round
    bool fell_back;   // the service was asked in vain
    const char*
        reason;  // why the first round was not the service's; null where it was, or was not asked
    uint32 probes;
    int64 candidates;
    int64 ranked_rows;
    uint32 lists_read;         // of the service's round: from pages, for they were not resident
    uint32 lists_grown;        // completed from pages
    int64 counted_candidates;  // what the counters have of these already
    int64 counted_rows;
};

// After each round of a scan.
void report_round(Relation index, ScanReport* report);

}  // namespace pgwarp
