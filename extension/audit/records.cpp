// Searches on their way from backends to the worker: a ring of bytes in shared memory.

#include <algorithm>
#include <cstring>

#include "extension/audit/audit.h"
#include "extension/index/effort.h"
#include "extension/scan/audited_search.h"

extern "C" {
#include "miscadmin.h"
#include "postmaster/bgworker.h"
}

namespace pgwarp {

namespace {

// Of the time that searches take, audits may take this much: less than the 2% that users are told.
constexpr double allowed_share = 0.015;

// What starting a worker takes, in seconds.
constexpr double start_cost = 0.01;

// From one start of a worker to the next: starting one for a single search takes longer than the
// search. A worker that was started and has not come by the shorter time is late; a second one
// finds the first, and ends.
constexpr int start_pause_ms = 10 * 1000;
constexpr int short_pause_ms = 1000;
constexpr uint32 some_records = 8;

void write_ring(const void* from, Size bytes) {
    const auto* source = static_cast<const char*>(from);
    const Size at = audits->head % AuditShared::ring_bytes;
    const Size first = std::min(bytes, static_cast<Size>(AuditShared::ring_bytes - at));
    memcpy(audits->ring + at, source, first);
    memcpy(audits->ring, source + first, bytes - first);
    audits->head += bytes;
}

void read_ring(uint64 from, void* to, Size bytes) {
    auto* target = static_cast<char*>(to);
    const Size at = from % AuditShared::ring_bytes;
    const Size first = std::min(bytes, static_cast<Size>(AuditShared::ring_bytes - at));
    memcpy(target, audits->ring + at, first);
    memcpy(target + first, audits->ring, bytes - first);
}

bool older_than(TimestampTz time, int milliseconds) {
    return TimestampDifferenceExceeds(time, GetCurrentTimestamp(), milliseconds);
}

// Also drops records that no worker takes: their database may have been dropped.
void drop_old_records() {
    AuditRecord record;
    while (first_record(&record) && older_than(record.at, oldest_record_ms)) drop_record(record);
}

AuditRecord record_of(const SearchToAudit& search) {
    AuditRecord record = {};
    record.database = MyDatabaseId;
    record.index = RelationGetRelid(search.index);
    record.file = compat_file_number(search.index);
    record.curve_at = search.meta->curve_at;
    record.correction =
        search.meta->learned(search.conditions->count > 0).correction[learned_group(search.k)];
    record.dims = search.query.dims;
    record.k = search.k;
    record.found = search.found;
    record.probes = search.probes;
    record.candidates = static_cast<uint32>(std::min<int64>(search.candidates, 1 << 24));
    record.conditions = search.conditions->count;
    record.values = count_values(search.conditions->all());
    record.target = search.target;
    record.at = GetCurrentTimestamp();
    const Size bytes = sizeof(AuditRecord) + MAXALIGN(record.dims * sizeof(float)) +
                       record.found * sizeof(double) + record.values * sizeof(uint64) +
                       record.conditions * sizeof(PackedCondition);
    record.bytes = static_cast<uint32>(std::min<Size>(bytes, PG_UINT32_MAX));
    return record;
}

// The record with what follows it, in the current memory context.
char* packed(const SearchToAudit& search, const AuditRecord& record) {
    char* bytes = static_cast<char*>(palloc0(record.bytes));
    memcpy(bytes, &record, sizeof(AuditRecord));
    char* at = bytes + sizeof(AuditRecord);
    memcpy(at, search.query.values, record.dims * sizeof(float));
    at += MAXALIGN(record.dims * sizeof(float));
    memcpy(at, search.distances, record.found * sizeof(double));
    at += record.found * sizeof(double);
    auto* values = reinterpret_cast<uint64*>(at);
    pack_conditions(search.conditions->all(),
                    reinterpret_cast<PackedCondition*>(values + record.values), values);
    return bytes;
}

// With the lock held: whether the caller should start a worker.
bool worker_is_due() {
    if (audits->worker_pid != 0) {
        SetLatch(audits->worker_latch);
        return false;
    }
    const int pause = audits->records >= some_records ? short_pause_ms : start_pause_ms;
    if (!older_than(audits->started_at, pause)) return false;
    audits->started_at = GetCurrentTimestamp();
    audits->allowance -= start_cost;
    return true;
}

void hand_over(const SearchToAudit& search) {
    AuditRecord record = record_of(search);
    char* bytes = record.bytes <= most_record_bytes ? packed(search, record) : nullptr;
    Oid database = InvalidOid;
    LWLockAcquire(audits->lock, LW_EXCLUSIVE);
    audits->allowance =
        std::min(most_allowance, audits->allowance + allowed_share * search.seconds * search.every);
    drop_old_records();
    if (bytes && audits->allowance > 0 && !is_skipped(record.database, record.index) &&
        audits->head - audits->tail + record.bytes <= AuditShared::ring_bytes) {
        write_ring(bytes, record.bytes);
        ++audits->records;
        AuditRecord first;
        if (first_record(&first) && worker_is_due()) database = first.database;
    } else {
        ++audited_index(record.database, record.index)->dropped;
    }
    LWLockRelease(audits->lock);
    if (bytes) pfree(bytes);
    if (OidIsValid(database)) start_audit_worker(database);
}

}  // namespace

void hand_over_searches() {
    audit_search = hand_over;
}

bool first_record(AuditRecord* record) {
    if (audits->records == 0) return false;
    read_ring(audits->tail, record, sizeof(AuditRecord));
    return true;
}

void take_record(const AuditRecord& record, char* to) {
    if (to) read_ring(audits->tail, to, record.bytes);
    audits->tail += record.bytes;
    --audits->records;
}

void drop_record(const AuditRecord& record) {
    ++audited_index(record.database, record.index)->dropped;
    take_record(record, nullptr);
}

void start_audit_worker(Oid database) {
    BackgroundWorker worker = {};
    strlcpy(worker.bgw_name, "pgwarp audit", BGW_MAXLEN);
    strlcpy(worker.bgw_type, "pgwarp audit", BGW_MAXLEN);
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    // A standby audits its own searches.
    worker.bgw_start_time = BgWorkerStart_ConsistentState;
    worker.bgw_restart_time = BGW_NEVER_RESTART;
    strlcpy(worker.bgw_library_name, "pgwarp", sizeof(worker.bgw_library_name));
    strlcpy(worker.bgw_function_name, "pgwarp_audit_main", sizeof(worker.bgw_function_name));
    worker.bgw_main_arg = ObjectIdGetDatum(database);
    // Without a free place for a worker, a later search tries again.
    (void)RegisterDynamicBackgroundWorker(&worker, nullptr);
}

}  // namespace pgwarp
