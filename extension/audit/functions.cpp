// SQL functions about audits.

#include <algorithm>

#include "kernels/mirror.h"
#include "extension/audit/audit.h"
#include "extension/index/argument.h"
#include "extension/index/page.h"
#include "extension/index/page_changes.h"
#include "extension/service/service.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
}

namespace pgwarp {

namespace {

const char* reason_of(Drift drift) {
    switch (drift) {
        case Drift::none:
            return nullptr;
        case Drift::effort_at_bound:
            return "recall is below the target, with the largest effort that audits may ask for";
        case Drift::table_has_grown:
            return "recall is below the target, and the table has more than doubled since the "
                   "index was built";
    }
    pg_unreachable();
}

// Audited searches, their recall, its interval, the share of poor ones, and the corrections in
// force.
constexpr int group_columns = 6;
void put_searches(const AuditedIndex::Searches& searches, Datum* values, bool* nulls) {
    values[0] = Int64GetDatum(searches.audited);
    if (searches.audited > 0) {
        const RecallEstimate known = known_recall(searches);
        const RecallInterval interval = recall_interval(known);
        values[1] = Float8GetDatum(interval.recall);
        values[2] = Float8GetDatum(interval.low);
        values[3] = Float8GetDatum(interval.high);
        values[4] = Float8GetDatum(poor_share(known));
    } else {
        std::fill_n(nulls + 1, 4, true);
    }
    Datum corrections[RecallCurve::ks];
    for (int k = 0; k < RecallCurve::ks; ++k)
        corrections[k] = Float4GetDatum(searches.by_rows[k].correction);
    values[5] = PointerGetDatum(construct_array(corrections, RecallCurve::ks, FLOAT4OID,
                                                sizeof(float4), true, TYPALIGN_INT));
}

// Writes to the metapage that nothing was learned.
void forget_on_page(Relation index) {
    while (true) {
        const MetaPage meta = read_meta(index);
        if (meta.learned(false).at == 0 && meta.learned(true).at == 0) return;
        MetaPage changed = meta;
        changed.forget_learned();
        if (write_learned(index, meta, changed)) return;
        CHECK_FOR_INTERRUPTS();  // an audit has written meanwhile
    }
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_stat_audits) {
    constexpr int columns = 18;
    check_signature(fcinfo, 0, columns);
    compat_init_materialized(fcinfo);
    ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    if (!audits) return Datum{0};
    for (const AuditedIndex& place : audits->indexes) {
        LWLockAcquire(audits->lock, LW_SHARED);
        const AuditedIndex entry = place;
        LWLockRelease(audits->lock);
        if (entry.database != MyDatabaseId) continue;
        Datum values[columns] = {};
        bool nulls[columns] = {};
        values[0] = ObjectIdGetDatum(entry.index);
        put_searches(entry.plain, values + 1, nulls + 1);
        put_searches(entry.with_conditions, values + 1 + group_columns, nulls + 1 + group_columns);
        values[13] = Int64GetDatum(entry.dropped);
        const char* reason = reason_of(entry.drift);
        nulls[14] = nulls[15] = nulls[16] = !reason;
        if (reason) {
            values[14] = CStringGetTextDatum(reason);
            values[15] = Float8GetDatum(entry.rows_at_build);
            values[16] = Float8GetDatum(entry.rows);
        }
        values[17] = ObjectIdGetDatum(entry.file);
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return Datum{0};
}

// What audits have learned of an index, on its metapage and in memory.
PGWARP_FUNCTION(ivfpq_forget) {
    check_signature(fcinfo, 1, 0);
    PreventCommandDuringRecovery("ivfpq_forget()");
    PreventCommandIfReadOnly("ivfpq_forget()");
    PreventCommandIfParallelMode("ivfpq_forget()");
    const IndexLeaves parts = find_parts(PG_GETARG_OID(0), Purpose::maintain);
    for (int i = 0; i < parts.count; ++i) {
        const OpenIndex open = open_part(parts.leaves[i], AccessShareLock);
        forget_on_page(open.index);
        close_index(open);
        if (!audits) continue;
        LWLockAcquire(audits->lock, LW_EXCLUSIVE);
        AuditedIndex* entry = find_audited(MyDatabaseId, parts.leaves[i].index);
        if (entry) *entry = {};
        LWLockRelease(audits->lock);
    }
    PG_RETURN_VOID();
}

PGWARP_FUNCTION(pg_stat_pgwarp_reset) {
    check_signature(fcinfo, 0, 0);
    reset_statistics(MyDatabaseId);
    if (audits) {
        LWLockAcquire(audits->lock, LW_EXCLUSIVE);
        // An index begins anew with its next audit, from the correction that it has by then.
        for (AuditedIndex& entry : audits->indexes)
            if (entry.database == MyDatabaseId) entry = {};
        LWLockRelease(audits->lock);
    }
    PG_RETURN_VOID();
}
