// SQL functions of the service.

#include "kernels/mirror.h"
#include "extension/index/argument.h"
#include "extension/index/page.h"
#include "extension/service/client.h"
#include "extension/service/placement.h"
#include "extension/service/shards.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/htup_details.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
}

using namespace pgwarp;

namespace {

// Sends a device the model and lists, in as many load buffers as it takes: all lists, or those that
// it owns. False: it did not take them.
bool send_index(ServiceDevice* device, Relation index, const MetaPage& meta, const Shards* shards,
                Deadline* deadline) {
    set_device(deadline, device, OtherDevices::none);
    if (!is_held(device, mirror_key(index, meta)) &&
        !bring_model(device, index, meta, false, true, deadline))
        return false;
    const int number = device_number(device);
    auto* lists = static_cast<ListToSend*>(palloc(meta.lists * sizeof(ListToSend)));
    uint32 count = 0;
    // First drop lists that the device should not have: they take room.
    for (uint32 i = 0; shards && i < meta.lists; ++i) {
        if (shards->owns(number, i)) continue;
        lists[count] = {i, {}};
        lists[count++].drop = true;
    }
    for (uint32 i = 0; i < meta.lists; ++i)
        if (!shards || shards->owns(number, i)) lists[count++] = {i, {}};
    send_lists(device, index, meta, lists, count, deadline, LoadKind::whole_index);
    pfree(lists);
    return true;
}

bool count_loaded(Relation index, const MetaPage& meta, Deadline* deadline, uint32* resident) {
    return wait_for_loads(deadline) && count_resident(mirror_key(index, meta), deadline, resident);
}

// Loads every list into a device. False: it was not taken in.
bool load_into(ServiceDevice* device, Relation index, const MetaPage& meta, uint32* resident) {
    Deadline deadline = load_deadline();
    return send_index(device, index, meta, nullptr, &deadline) &&
           count_loaded(index, meta, &deadline, resident);
}

const char* why_not_taken(const ServiceDevice* device, const MirrorKey& key) {
    if (!worker_serves(device)) return why_not_served(device);
    return is_refused(device, key) ? refused_reason : silent_reason;
}

[[noreturn]] void report_not_taken(Relation index, const char* reason) {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("the pgwarp service did not take in index \"%s\": %s",
                           RelationGetRelationName(index), reason)));
    pg_unreachable();
}

void warn_of_device(const ServiceDevice* device, Relation index, const char* reason,
                    const char* detail) {
    ereport(WARNING, (errmsg("device %d of the pgwarp service did not take in index \"%s\": %s",
                             device_number(device), RelationGetRelationName(index), reason),
                      errdetail("%s", detail)));
}

// Loads every list into the devices that own it; returns the number of resident lists: of several
// copies of a part, the one with the fewest counts.
int64 load_shards(Relation index, const MetaPage& meta, const MirrorKey& key,
                  const Shards& shards) {
    Deadline deadlines[most_devices];
    bool sent[most_devices] = {};
    for (int i = 0; i < service->devices; ++i) {
        deadlines[i] = load_deadline();
        ServiceDevice* device = service_device(i);
        sent[i] = shards.has(i) && worker_serves(device) &&
                  send_index(device, index, meta, &shards, &deadlines[i]);
    }
    int64 of_parts[most_devices];
    for (uint32 part = 0; part < shards.parts; ++part) of_parts[part] = -1;
    const ServiceDevice* failed = nullptr;
    for (int i = 0; i < service->devices; ++i) {
        if (!shards.has(i)) continue;
        int64& of_part = of_parts[shards.part_of[i]];
        uint32 resident = 0;
        if (sent[i] && count_loaded(index, meta, &deadlines[i], &resident))
            of_part = of_part < 0 ? resident : Min(of_part, int64{resident});
        else
            failed = service_device(i);
    }
    int64 all = -1;
    for (uint32 part = 0; part < shards.parts; ++part)
        if (of_parts[part] >= 0) all = Max(all, int64{0}) + of_parts[part];
    if (all < 0)
        report_not_taken(index, failed ? why_not_taken(failed, key) : "all devices are away");
    if (failed) {
        const bool others = of_parts[shards.part_of[device_number(failed)]] >= 0;
        warn_of_device(
            failed, index, why_not_taken(failed, key),
            others ? "Other devices have its lists." : "Sessions read its lists from pages.");
    }
    return Min(all, int64{meta.lists});
}

// Loads every list; returns the number of resident lists.
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
    if (meta.lists == 0) return 0;
    // Creates the index's row in pg_stat_pgwarp.
    if (open.index->rd_createSubid == InvalidSubTransactionId)
        statistics_of(MyDatabaseId, RelationGetRelid(open.index));
    Shards shards;
    const MirrorKey key = mirror_key(open.index, meta);
    if (find_shards(open.index, meta, key, &shards, true))
        return load_shards(open.index, meta, key, shards);
    const Route route = route_load(key, placement_of(open.index));
    reason = "its device is away";
    // Of several copies, the one with the fewest lists counts.
    int64 fewest = -1;
    const ServiceDevice* failed = nullptr;
    for (int i = 0; i < route.count; ++i) {
        uint32 resident = 0;
        if (load_into(route.devices[i], open.index, meta, &resident)) {
            fewest = fewest < 0 ? resident : Min(fewest, int64{resident});
        } else {
            failed = route.devices[i];
            reason = why_not_taken(failed, key);
        }
    }
    if (fewest < 0) report_not_taken(open.index, reason);
    if (failed) warn_of_device(failed, open.index, reason, "Other devices have it.");
    return fewest;
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

// Columns of pgwarp_devices() and pgwarp_service() that tell of a worker: serves, pid, reason,
// since, last_failure, last_failure_at.
constexpr int state_columns = 6;
static void state_of(const ServiceDevice* device, Datum* values, bool* nulls) {
    const bool serves = worker_serves(device);
    const bool silent = serves && is_suspect(device);
    const char* reason = silent ? silent_reason : serves ? nullptr : why_not_served(device);
    const bool failed_before = device->last_failure[0] != '\0';
    values[0] = BoolGetDatum(serves && !silent);
    values[1] = Int32GetDatum(device->worker_pid);
    nulls[1] = !serves;
    if (reason) values[2] = CStringGetTextDatum(reason);
    nulls[2] = !reason;
    values[3] = TimestampTzGetDatum(silent ? device->suspected_at : device->since);
    if (failed_before) {
        values[4] = CStringGetTextDatum(device->last_failure);
        values[5] = TimestampTzGetDatum(device->last_failure_at);
    }
    nulls[4] = nulls[5] = !failed_before;
}

PGWARP_FUNCTION(pgwarp_devices) {
    constexpr int own_columns = 8;
    check_signature(fcinfo, 0, own_columns + state_columns);
    compat_init_materialized(fcinfo);
    ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    for (int i = 0; service && i < service->devices; ++i) {
        ServiceDevice* device = service_device(i);
        const DeviceInfo& info = device->info;
        const bool opened = info.name[0] != '\0';
        // Without its worker a device has nothing.
        const bool serves = worker_serves(device);
        Datum values[own_columns + state_columns] = {};
        bool nulls[own_columns + state_columns] = {};
        values[0] = Int32GetDatum(info.number);
        nulls[0] = !opened || info.number < 0;
        if (opened) values[1] = CStringGetTextDatum(info.name);
        values[2] = Int64GetDatum(info.memory_budget);
        nulls[1] = nulls[2] = !opened;
        values[3] = Int64GetDatum(serves ? info.memory_used : 0);
        values[4] = Int64GetDatum(serves ? info.memory_reserved : 0);
        values[5] = Int32GetDatum(i);
        values[6] = Int64GetDatum(serves ? info.indexes : 0);
        values[7] = Int32GetDatum(static_cast<int32>(busy_searches(device)));
        state_of(device, values + own_columns, nulls + own_columns);
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return Datum{0};
}

// The device that pgwarp_service() shows: the first that serves, else the first.
static const ServiceDevice* speaker() {
    const ServiceDevice* silent = nullptr;
    for (int i = service->devices - 1; i >= 0; --i)
        if (worker_serves(service_device(i)) && is_suspect(service_device(i)))
            silent = service_device(i);
    for (int i = 0; i < service->devices; ++i)
        if (worker_serves(service_device(i)) && !is_suspect(service_device(i)))
            return service_device(i);
    return silent ? silent : service_device(0);
}

PGWARP_FUNCTION(pgwarp_service) {
    check_signature(fcinfo, 0, state_columns);
    TupleDesc descriptor;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    Datum values[state_columns] = {};
    bool nulls[state_columns] = {};
    if (service) {
        state_of(speaker(), values, nulls);
    } else {
        const char* reason = nullptr;
        values[0] = BoolGetDatum(service_serves(&reason));
        values[2] = CStringGetTextDatum(reason);
        nulls[1] = nulls[3] = nulls[4] = nulls[5] = true;
    }
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(descriptor, values, nulls)));
}

// What all devices together have of an index.
struct HeldTotal {
    uint64 lists;
    uint64 resident_lists;  // on the device that has most; of a spread index, of all its parts
    uint64 bytes;
};
static HeldTotal held_total(Oid index) {
    HeldTotal total = {};
    Shards shards;
    const bool spread = known_shards(MyDatabaseId, index, &shards);
    uint32 of_parts[most_devices + 1] = {};  // and of devices that own none
    for (int i = 0; i < service->devices; ++i) {
        auto* held = const_cast<HeldIndex*>(find_held(service_device(i), MyDatabaseId, index));
        if (!held) continue;
        const int part = !spread ? 0 : shards.has(i) ? shards.part_of[i] : most_devices;
        of_parts[part] = Max(of_parts[part], pg_atomic_read_u32(&held->resident_lists));
        total.lists = Max(total.lists, pg_atomic_read_u32(&held->lists));
        total.bytes += pg_atomic_read_u64(&held->bytes);
    }
    for (const uint32 resident : of_parts) total.resident_lists += resident;
    // Some lists may be on their way from one to another.
    total.resident_lists = Min(total.resident_lists, total.lists);
    return total;
}

PGWARP_FUNCTION(pgwarp_stat_indexes) {
    constexpr int columns = 1 + counter_count + 3;
    check_signature(fcinfo, 0, columns);
    compat_init_materialized(fcinfo);
    ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    if (!service) return Datum{0};
    for (IndexStatistics& entry : statistics_places()) {
        if (entry.database != MyDatabaseId || entry.index == InvalidOid) continue;
        Datum values[columns];
        bool nulls[columns] = {};
        Datum* value = values;
        *value++ = ObjectIdGetDatum(entry.index);
        for (pg_atomic_uint64& counter : entry.counters)
            *value++ = Int64GetDatum(static_cast<int64>(pg_atomic_read_u64(&counter)));
        const HeldTotal total = held_total(entry.index);
        *value++ = Int64GetDatum(static_cast<int64>(total.lists));
        *value++ = Int64GetDatum(static_cast<int64>(total.resident_lists));
        *value++ = Int64GetDatum(static_cast<int64>(total.bytes));
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return Datum{0};
}

// What each device has of each index of this database.
PGWARP_FUNCTION(pgwarp_stat_copies) {
    constexpr int columns = 10;
    check_signature(fcinfo, 0, columns);
    compat_init_materialized(fcinfo);
    ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    for (int i = 0; service && i < service->devices; ++i)
        for (HeldIndex& held : service_device(i)->held) {
            const uint64 name = pg_atomic_read_u64(&held.name);
            const uint32 lists = pg_atomic_read_u32(&held.lists);
            const uint64 refused = pg_atomic_read_u64(&held.refused);
            if ((lists == 0 && refused == 0) || static_cast<Oid>(name >> 32) != MyDatabaseId)
                continue;
            Shards shards;
            const bool spread =
                known_shards(MyDatabaseId, static_cast<Oid>(name), &shards) && shards.has(i);
            const Datum values[columns] = {
                ObjectIdGetDatum(static_cast<Oid>(name)),
                Int32GetDatum(i),
                Int64GetDatum(lists),
                Int64GetDatum(pg_atomic_read_u32(&held.resident_lists)),
                Int64GetDatum(static_cast<int64>(pg_atomic_read_u64(&held.bytes))),
                Int64GetDatum(static_cast<int64>(pg_atomic_read_u64(&held.batches))),
                Int64GetDatum(static_cast<int64>(pg_atomic_read_u64(&held.batch_queries))),
                Int64GetDatum(spread ? shards.owned(i, lists) : 0),
                Int32GetDatum(spread ? shards.part_of[i] : 0),
                Int64GetDatum(static_cast<int64>(refused))};
            bool nulls[columns] = {};
            nulls[columns - 3] = nulls[columns - 2] = !spread;
            nulls[columns - 1] = refused == 0;
            tuplestore_putvalues(result->setResult, result->setDesc, const_cast<Datum*>(values),
                                 nulls);
        }
    return Datum{0};
}
