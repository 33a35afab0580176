// What a scan did, for ivfpq_last_scan() and the counters of pg_stat_pgwarp.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

struct ScanReport {
    int32 rounds;
    bool by_service;  // the service answered the first round
    bool fell_back;   // the service was asked, without a usable answer
    const char*
        reason;  // why the service did not answer the first round; null: it did, or was not asked
    uint32 probes;
    int64 candidates;
    int64 ranked_rows;         // rows whose exact distance was computed
    uint32 lists_read;         // service round: lists read from pages, as they were not resident
    uint32 lists_grown;        // service round: resident lists completed from pages
    float score;               // at which the last search stopped, see expect_recall(); 0: unknown
    float expected_recall;     // 0: unknown
    int64 counted_candidates;  // candidates already added to the counters
    int64 counted_rows;
};

// Called after each round of a scan.
void report_round(Relation index, ScanReport* report);
// Called after a round has visited further rows.
void report_visits(Relation index, ScanReport* report);
// Searches of a batch that the service has answered.
void count_served(Relation index, uint32 searches);

}  // namespace pgwarp
