// SQL functions of the service.

#include "kernels/mirror.h"
#include "extension/index/argument.h"
#include "extension/index/page.h"
#include "extension/service/client.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/htup_details.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
}

using namespace pgwarp;

namespace {

// Loads every list, in as many load buffers as it takes; returns the number of resident lists.
int64 load_index(const OpenIndex& open) {
    const MetaPage meta = read_meta(open.index);
    const char* reason = nullptr;
    if (!service_serves(&reason))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("the pgwarp service is not available: %s", reason)));
    if (RelationUsesLocalBuffers(open.index))
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("cannot load a temporary index: it is in the memory of its session")));
    uint32 resident = 0;
    if (meta.lists > 0) {
        // Creates the index's row in pg_stat_pgwarp.
        if (open.index->rd_createSubid == InvalidSubTransactionId)
            statistics_of(MyDatabaseId, RelationGetRelid(open.index));
        Patience patience = load_patience();
        bool taken = send_model(open.index, meta, &patience);
        auto* lists = static_cast<ListToSend*>(palloc(meta.lists * sizeof(ListToSend)));
        for (uint32 i = 0; i < meta.lists; ++i) lists[i] = {i, {}};
        if (taken) {
            send_lists(open.index, meta, lists, meta.lists, &patience, LoadKind::whole_index);
            taken = wait_for_loads(&patience) &&
                    count_resident(mirror_key(open.index, meta), &patience, &resident);
        }
        if (!taken)
            ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                            errmsg("the pgwarp service did not take in index \"%s\": %s",
                                   RelationGetRelationName(open.index),
                                   service_serves(&reason) ? silent_reason : reason)));
    }
    return resident;
}

}  // namespace

PGWARP_FUNCTION(pgwarp_prewarm) {
    check_signature(fcinfo, 1, 0);
    int64 resident = 0;
    const IndexLeaves parts = find_parts(PG_GETARG_OID(0));
    for (int i = 0; i < parts.count; ++i) {
        const OpenIndex open = open_part(parts.leaves[i], AccessShareLock);
        resident += load_index(open);
        close_index(open);
    }
    PG_RETURN_INT64(resident);
}

PGWARP_FUNCTION(pgwarp_devices) {
    check_signature(fcinfo, 0, 5);
    compat_init_materialized(fcinfo);
    ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    const char* reason;
    if (service_serves(&reason))
        for (int i = 0; i < service->devices; ++i) {
            const DeviceInfo& info = service->device[i];
            Datum values[5];
            bool nulls[5] = {info.number < 0, false, false, false, false};
            values[0] = Int32GetDatum(info.number);
            values[1] = CStringGetTextDatum(info.name);
            values[2] = Int64GetDatum(info.memory_budget);
            values[3] = Int64GetDatum(info.memory_used);
            values[4] = Int64GetDatum(info.memory_reserved);
            tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
        }
    return Datum{0};
}

PGWARP_FUNCTION(pgwarp_service) {
    check_signature(fcinfo, 0, 6);
    TupleDesc descriptor;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    const char* reason = nullptr;
    const bool is_there = service_serves(&reason);
    const bool silent = is_there && pg_atomic_read_u32(&service->suspect) != 0;
    if (silent) reason = silent_reason;
    const bool failed_before = service && service->last_failure[0];
    Datum values[6] = {};
    bool nulls[6] = {false, !is_there, !reason, !service, !failed_before, !failed_before};
    values[0] = BoolGetDatum(is_there && !silent);
    if (is_there) values[1] = Int32GetDatum(service->worker_pid);
    if (reason) values[2] = CStringGetTextDatum(reason);
    if (service) values[3] = TimestampTzGetDatum(silent ? service->suspected_at : service->since);
    if (failed_before) {
        values[4] = CStringGetTextDatum(service->last_failure);
        values[5] = TimestampTzGetDatum(service->last_failure_at);
    }
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(descriptor, values, nulls)));
}

PGWARP_FUNCTION(pgwarp_stat_indexes) {
    check_signature(fcinfo, 0, 16);
    compat_init_materialized(fcinfo);
    ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    if (!service) return Datum{0};
    for (IndexStatistics& entry : statistics_places()) {
        if (entry.database != MyDatabaseId || entry.index == InvalidOid) continue;
        Datum values[1 + counter_count];
        bool nulls[1 + counter_count] = {};
        values[0] = ObjectIdGetDatum(entry.index);
        for (int i = 0; i < counter_count; ++i)
            values[1 + i] =
                Int64GetDatum(static_cast<int64>(pg_atomic_read_u64(&entry.counters[i])));
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return Datum{0};
}
