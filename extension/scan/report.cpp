#include "kernels/mirror.h"
#include "extension/scan/report.h"
#include "extension/service/service.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/htup_details.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
}

namespace pgwarp {

namespace {

// The last scan of this session.
struct {
    Oid index;
    ScanReport report;
} last_scan;

void count(IndexStatistics* statistics, Counter counter, int64 amount) {
    if (amount > 0) pg_atomic_fetch_add_u64(&statistics->counters[counter], amount);
}

// An index created in this transaction has no counters: it may be rolled back.
IndexStatistics* statistics_for(Relation index) {
    return index->rd_createSubid == InvalidSubTransactionId
               ? statistics_of(MyDatabaseId, RelationGetRelid(index))
               : nullptr;
}

}  // namespace

void report_round(Relation index, ScanReport* report) {
    IndexStatistics* statistics = statistics_for(index);
    if (statistics && report->rounds == 1) {
        count(statistics, report->by_service ? counter_service_searches : counter_cpu_searches, 1);
        count(statistics, counter_fallbacks, report->fell_back);
    }
    report_visits(index, report);
}

void report_visits(Relation index, ScanReport* report) {
    IndexStatistics* statistics = statistics_for(index);
    if (statistics) {
        count(statistics, counter_candidates, report->candidates - report->counted_candidates);
        count(statistics, counter_ranked_rows, report->ranked_rows - report->counted_rows);
        report->counted_candidates = report->candidates;
        report->counted_rows = report->ranked_rows;
    }
    last_scan.index = RelationGetRelid(index);
    last_scan.report = *report;
}

void count_served(Relation index, uint32 searches) {
    if (IndexStatistics* statistics = statistics_for(index))
        count(statistics, counter_service_searches, searches);
}

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(ivfpq_last_scan) {
    constexpr int columns = 11;
    check_signature(fcinfo, 0, columns);
    TupleDesc descriptor;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    if (!OidIsValid(last_scan.index)) PG_RETURN_NULL();
    const ScanReport& report = last_scan.report;
    Datum values[columns] = {};
    bool nulls[columns] = {};
    values[0] = ObjectIdGetDatum(last_scan.index);
    values[1] = CStringGetTextDatum(report.by_service ? "service" : "cpu");
    if (report.reason && !report.by_service)
        values[2] = CStringGetTextDatum(report.reason);
    else
        nulls[2] = true;
    values[3] = Int32GetDatum(report.rounds);
    values[4] = Int32GetDatum(static_cast<int32>(report.probes));
    values[5] = Int64GetDatum(report.candidates);
    values[6] = Int64GetDatum(report.ranked_rows);
    values[7] = Int32GetDatum(static_cast<int32>(report.lists_read));
    values[8] = Int32GetDatum(static_cast<int32>(report.lists_grown));
    values[9] = Float8GetDatum(report.score);
    nulls[9] = !(report.score > 0);
    values[10] = Float8GetDatum(report.expected_recall);
    nulls[10] = !(report.expected_recall > 0);
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(descriptor, values, nulls)));
}
