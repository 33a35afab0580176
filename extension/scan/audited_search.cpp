#include <algorithm>
#include <cmath>

#include "kernels/random.h"
#include "extension/index/effort.h"
#include "extension/scan/audited_search.h"
#include "extension/scan/state.h"
#include "extension/settings.h"

extern "C" {
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

void (*audit_search)(const SearchToAudit& search) = nullptr;

namespace {

// One scan in this many is audited. The scans of a table's partitions count as one search, and an
// audited one searches by itself.
uint64 searches_for_one(IndexScanDesc scan) {
    const ScanGroup* group = group_of(scan);
    if (settings.audit_every == 1 || !group) return static_cast<uint64>(settings.audit_every);
    return static_cast<uint64>(settings.audit_every) * static_cast<uint64>(group_size(group));
}

// At random: sessions may be short, and searches may repeat in a pattern.
bool drawn(IndexScanDesc scan) {
    static Random random(static_cast<uint64>(GetCurrentTimestamp()) ^
                         (static_cast<uint64>(MyProcPid) << 40));
    return settings.audit_every == 1 || random.below(searches_for_one(scan)) == 0;
}

// Whether the curve alone decided how much the search does.
bool effort_is_chosen(const MetaPage& meta) {
    return meta.lists > 0 && has_curve(meta) && settings.probes == 0 && settings.candidates == 0 &&
           settings.max_probes == 0 && settings.max_scan_tuples == 0 &&
           settings.target_recall > 0 && settings.target_recall < 1;
}

// Whether another process, with a later snapshot, finds the same rows but for changes that commit
// in between.
bool others_see_the_same(Relation index) {
    return !RelationUsesLocalBuffers(index) && index->rd_createSubid == InvalidSubTransactionId &&
           !TransactionIdIsValid(GetTopTransactionIdIfAny()) && !IsolationUsesXactSnapshot();
}

}  // namespace

void choose_for_audit(IndexScanDesc scan, ScanState* s, const WantedRows& wanted) {
    s->audited.k = 0;
    if (!audit_search || settings.audit_every == 0 || !drawn(scan)) return;
    // Without a LIMIT, the number of rows that matter is unknown. Where the executor or the scan
    // checks filters on rows, or has the rows of a bitmap, the conditions are not all that decides
    // which rows are found.
    constexpr Size most_rows = 1 << 14;
    if (s->asked.rows > 0 || wanted.in_order == 0 || wanted.in_order > most_rows ||
        s->bound.given || s->conditions.rows || row_filter(s->reader).passes ||
        planned_share(scan) <= 0)
        return;
    if (scan->orderByData[0].sk_flags & SK_ISNULL) return;
    if (!effort_is_chosen(s->meta) || !others_see_the_same(scan->indexRelation)) return;
    s->audited.k = static_cast<uint32>(wanted.in_order);
    INSTR_TIME_SET_CURRENT(s->audited.start);
}

void note_for_audit(IndexScanDesc scan, const ScanState* s) {
    if (s->round.spilled) return;
    instr_time took;
    INSTR_TIME_SET_CURRENT(took);
    INSTR_TIME_SUBTRACT(took, s->audited.start);
    SearchToAudit search = {};
    search.index = scan->indexRelation;
    search.meta = &s->meta;
    search.query = s->query.vector;
    search.conditions = &s->conditions;
    search.k = s->audited.k;
    search.target = settings.target_recall;
    search.probes = s->report.probes;
    search.candidates = s->report.candidates;
    search.found = static_cast<uint32>(std::min<Size>(s->round.count, search.k));
    search.seconds = INSTR_TIME_GET_DOUBLE(took);
    search.every = static_cast<double>(searches_for_one(scan));
    auto* distances = static_cast<double*>(palloc(Max(search.found, 1u) * sizeof(double)));
    for (uint32 i = 0; i < search.found; ++i) distances[i] = s->round.rows[i].distance;
    search.distances = distances;
    // Distances without an order do not tell which rows are near.
    const bool finite = search.found == 0 || std::isfinite(distances[search.found - 1]);
    if (finite) audit_search(search);
    pfree(distances);
}

}  // namespace pgwarp
