// SQL functions about audits.

#include "kernels/mirror.h"
#include "extension/audit/audit.h"
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

const char* reason_of(Drift drift) {
    switch (drift) {
        case Drift::none:
            return nullptr;
        case Drift::effort_at_bound:
            return "recall is below the target, with the largest effort that audits may ask for";
        case Drift::table_has_grown:
            return "recall is below the target, and the table has more than doubled since the "
                   "index was built";
        case Drift::old_format:
            return "recall is below the target, and the index has a format that does not learn";
    }
    pg_unreachable();
}

// Audits of a group, its recall, and the interval of that.
void put_group(const AuditedIndex& entry, AuditedIndex::Group group, Datum* values, bool* nulls) {
    values[0] = Int64GetDatum(entry.audited[group]);
    nulls[1] = nulls[2] = nulls[3] = entry.audited[group] == 0;
    if (entry.audited[group] == 0) return;
    const RecallInterval interval = recall_interval(known_recall(entry, group));
    values[1] = Float8GetDatum(interval.recall);
    values[2] = Float8GetDatum(interval.low);
    values[3] = Float8GetDatum(interval.high);
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_stat_audits) {
    check_signature(fcinfo, 0, 15);
    compat_init_materialized(fcinfo);
    ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    if (!audits) return Datum{0};
    for (const AuditedIndex& place : audits->indexes) {
        LWLockAcquire(audits->lock, LW_SHARED);
        const AuditedIndex entry = place;
        LWLockRelease(audits->lock);
        if (entry.database != MyDatabaseId) continue;
        Datum values[15] = {};
        bool nulls[15] = {};
        values[0] = ObjectIdGetDatum(entry.index);
        put_group(entry, AuditedIndex::plain, values + 1, nulls + 1);
        put_group(entry, AuditedIndex::with_conditions, values + 5, nulls + 5);
        values[9] = Int64GetDatum(entry.dropped);
        values[10] = Float8GetDatum(main_correction(entry));
        const char* reason = reason_of(entry.drift);
        nulls[11] = nulls[12] = nulls[13] = !reason;
        if (reason) {
            values[11] = CStringGetTextDatum(reason);
            values[12] = Float8GetDatum(entry.rows_at_build);
            values[13] = Float8GetDatum(entry.rows);
        }
        values[14] = ObjectIdGetDatum(entry.file);
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return Datum{0};
}

// Counters of searches and of audits.
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
