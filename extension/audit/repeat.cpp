// A search, repeated with a far larger effort.
//
// Distances are compared, not TIDs: a row counts as found if it is as near as the k-th row of the
// repeated search, so ties count as found. Both searches compute distances by the same function.
// Rows that were inserted or deleted in between make an error, by the share of the k nearest rows
// that they are. Records are dropped after a minute, which bounds it.

#include <algorithm>
#include <cmath>

#include "extension/audit/audit.h"
#include "extension/index/attributes.h"
#include "extension/index/effort.h"
#include "extension/index/page.h"
#include "extension/scan/scan.h"
#include "extension/limits.h"
#include "extension/settings.h"

extern "C" {
#include "access/genam.h"
#include "access/relscan.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

// Neighbors that the repeated search misses as well are not counted: its target is near 1.
constexpr double repeated_target = 0.999;
// The effort of the repeated search in multiples of the first one's, at least and at most. Most of
// what a search misses is in lists that it does not read.
constexpr double least_lists = 10;
constexpr double least_candidates = 4;
constexpr double most_times = 16;

// What follows a record.
struct RecordParts {
    RepeatedSearch search;
    const double* distances;
};

RecordParts parts_of(Relation index, const AuditRecord& record, const char* data) {
    RecordParts parts = {};
    parts.search.query = {reinterpret_cast<const float*>(data), record.dims};
    data += MAXALIGN(record.dims * sizeof(float));
    parts.distances = reinterpret_cast<const double*>(data);
    data += record.found * sizeof(double);
    if (record.conditions == 0) return parts;
    const auto* values = reinterpret_cast<const uint64*>(data);
    const auto* items =
        reinterpret_cast<const PackedCondition*>(data + record.values * sizeof(uint64));
    Conditions* conditions = &parts.search.conditions;
    conditions->attributes = copy_attributes(index);
    conditions->count = record.conditions;
    conditions->items = static_cast<Condition*>(palloc0(record.conditions * sizeof(Condition)));
    unpack_conditions({items, record.conditions, values, record.values}, conditions->items);
    return parts;
}

uint32 times_effort(uint32 first, double least_times, uint32 wanted, uint32 most) {
    const double times = std::clamp<double>(wanted, least_times * first, most_times * first);
    return static_cast<uint32>(std::clamp<double>(times, 1, most));
}

// Sets this process's effort for the search.
void set_effort(const MetaPage& meta, const AuditRecord& record) {
    settings.target_recall = record.target;
    const bool with_conditions = record.conditions > 0;
    const uint32 mean_probes = choose_effort(meta, record.k, with_conditions).probes;
    settings.target_recall = repeated_target;
    settings.probes = settings.candidates = 0;
    settings.max_probes = settings.max_scan_tuples = 0;
    settings.executor = static_cast<int>(ExecutorChoice::automatic);
    settings.iterative_scan = static_cast<int>(IterativeScan::relaxed_order);
    const Effort effort = choose_effort(meta, record.k, with_conditions);
    // A query that decides on its lists may have taken too few: at least the mean is repeated.
    const uint32 first = std::max(record.probes, mean_probes);
    settings.probes = static_cast<int>(times_effort(first, least_lists, effort.probes, meta.lists));
    settings.candidates =
        static_cast<int>(times_effort(std::max(record.candidates, record.k), least_candidates,
                                      effort.candidates, max_candidates));
}

}  // namespace

bool repeat_recorded(Relation heap, Relation index, const AuditRecord& record, const char* data,
                     double* recall) {
    const MetaPage meta = read_meta(index);
    if (meta.dims != record.dims || meta.lists == 0 || meta.curve_at != record.curve_at)
        return false;
    set_effort(meta, record);
    const RecordParts parts = parts_of(index, record, data);
    ScanKeyData order = {};
    order.sk_flags = SK_ORDER_BY | SK_ISNULL;
    order.sk_attno = 1;
    order.sk_strategy = 1;
    IndexScanDesc scan = compat_index_beginscan(heap, index, GetActiveSnapshot(), 0, 1);
    want_rows(scan, record.k);
    repeat_search(scan, &parts.search);
    index_rescan(scan, nullptr, 0, &order, 1);
    uint32 nearest = 0;
    double farthest = 0;
    while (nearest < record.k && index_getnext_tid(scan, ForwardScanDirection)) {
        // Rounds after the first may have nearer rows.
        const double distance = returned_distance(scan);
        farthest = nearest == 0 ? distance : std::max(farthest, distance);
        ++nearest;
    }
    index_endscan(scan);
    if (nearest == 0 || !std::isfinite(farthest)) return false;
    const double* end = std::upper_bound(parts.distances, parts.distances + record.found, farthest);
    const auto found = static_cast<double>(end - parts.distances);
    *recall = std::min(1.0, found / nearest);
    return true;
}

}  // namespace pgwarp
