// The worker of audits: repeats recorded searches of one database, and ends when there are none.
//
// A session starts it (records.cpp), and it does not stay: a process that is connected to a
// database keeps others from dropping it. There is one at a time. If the next record is of another
// database, it starts a worker for that one, and ends.

#include "kernels/mirror.h"
#include "extension/audit/audit.h"
#include "extension/index/argument.h"
#include "extension/index/options.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timeout.h"
}

namespace pgwarp {

namespace {

// An idle worker disconnects after this time: DROP DATABASE waits only five seconds for backends to
// leave the database.
constexpr long idle_ms = 2000;
// And an audit takes no longer than this, for the same reason.
constexpr int most_audit_ms = 4000;

void leave(int, Datum) {
    LWLockAcquire(audits->lock, LW_EXCLUSIVE);
    if (audits->worker_pid == MyProcPid) audits->worker_pid = 0;
    LWLockRelease(audits->lock);
}

bool claim() {
    LWLockAcquire(audits->lock, LW_EXCLUSIVE);
    const bool alone = audits->worker_pid == 0;
    if (alone) {
        audits->worker_pid = MyProcPid;
        audits->worker_latch = MyLatch;
    }
    LWLockRelease(audits->lock);
    return alone;
}

enum class Next { record, nothing, other_database };

// Takes the next record of this database; `bytes` has room for most_record_bytes. Records that the
// allowance is too small for are dropped.
Next next_record(AuditRecord* record, char* bytes) {
    Next next = Next::nothing;
    LWLockAcquire(audits->lock, LW_EXCLUSIVE);
    while (next == Next::nothing && first_record(record)) {
        const bool useful =
            audits->allowance > 0 && !is_skipped(record->database, record->index) &&
            !TimestampDifferenceExceeds(record->at, GetCurrentTimestamp(), oldest_record_ms);
        if (!useful) {
            drop_record(*record);
        } else if (record->database != MyDatabaseId) {
            next = Next::other_database;
        } else {
            next = Next::record;
            take_record(*record, bytes);
        }
    }
    LWLockRelease(audits->lock);
    return next;
}

// Locks table and index without waiting. False: a session that rebuilds or drops the index holds a
// stronger lock.
bool lock_at_once(Oid index) {
    const Oid table = IndexGetRelation(index, true);
    return OidIsValid(table) && ConditionalLockRelationOid(table, AccessShareLock) &&
           ConditionalLockRelationOid(index, AccessShareLock) &&
           // It may have been dropped before it was locked.
           IndexGetRelation(index, true) == table;
}

// Whether this is still the index that was searched.
bool is_the_same(Oid relation, uint32 file) {
    Relation index = try_relation_open(relation, NoLock);
    if (!index) return false;
    const bool same = index->rd_rel->relkind == RELKIND_INDEX && is_ivfpq(index) &&
                      index->rd_index->indisvalid && compat_file_number(index) == file;
    relation_close(index, NoLock);
    return same;
}

// Ends audits of the index for a while, so that those of others have their turn.
void skip_index(const AuditRecord& record) {
    constexpr int skipped_ms = 10 * 60 * 1000;
    LWLockAcquire(audits->lock, LW_EXCLUSIVE);
    audited_index(record.database, record.index)->skipped_until =
        TimestampTzPlusMilliseconds(GetCurrentTimestamp(), skipped_ms);
    LWLockRelease(audits->lock);
    ereport(LOG, (errmsg("an audit of index %u took longer than %d seconds", record.index,
                         most_audit_ms / 1000),
                  errdetail("Its searches are not audited for ten minutes.")));
}

// Raises no error, also if the time is over just now.
void end_timeout() {
    disable_timeout(STATEMENT_TIMEOUT, false);
    QueryCancelPending = false;
}

void audit(const AuditRecord& record, const char* bytes) {
    StartTransactionCommand();
    enable_timeout_after(STATEMENT_TIMEOUT, most_audit_ms);
    PushActiveSnapshot(GetTransactionSnapshot());
    if (lock_at_once(record.index) && is_the_same(record.index, record.file)) {
        // As the table's owner: index expressions are the owner's code.
        const OpenIndex open = open_index(record.index, AccessShareLock);
        Audit result{&record, 0};
        if (repeat_recorded(open.heap, open.index, record, bytes + sizeof(AuditRecord),
                            &result.recall))
            learn_from(open.heap, open.index, result);
        close_index(open);
    }
    PopActiveSnapshot();
    end_timeout();
    CommitTransactionCommand();
}

// A failed audit is not counted: the index's searches report the error.
void audit_or_report(const AuditRecord& record, const char* bytes) {
    const MemoryContext context = CurrentMemoryContext;
    const TimestampTz began = GetCurrentTimestamp();
    PG_TRY();
    { audit(record, bytes); }
    PG_CATCH();
    {
        HOLD_INTERRUPTS();
        end_timeout();
        MemoryContextSwitchTo(context);
        ErrorData* error = CopyErrorData();
        FlushErrorState();
        AbortCurrentTransaction();
        if (error->sqlerrcode == ERRCODE_QUERY_CANCELED &&
            TimestampDifferenceExceeds(began, GetCurrentTimestamp(), most_audit_ms - 1))
            skip_index(record);
        else
            ereport(LOG, (errmsg("an audit of index %u failed: %s", record.index, error->message)));
        FreeErrorData(error);
        RESUME_INTERRUPTS();
    }
    PG_END_TRY();
    MemoryContextSwitchTo(context);
}

void run_audits() {
    auto* bytes = static_cast<char*>(MemoryContextAlloc(TopMemoryContext, most_record_bytes));
    MemoryContext context =
        AllocSetContextCreate(TopMemoryContext, "pgwarp audit", ALLOCSET_DEFAULT_SIZES);
    MemoryContextSwitchTo(context);
    TimestampTz last = GetCurrentTimestamp();
    while (true) {
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
        if (ConfigReloadPending) {
            ConfigReloadPending = false;
            ProcessConfigFile(PGC_SIGHUP);
        }
        AuditRecord record;
        const Next next = next_record(&record, bytes);
        if (next == Next::other_database) return;
        if (next == Next::record) {
            const double start = seconds_now();
            pgstat_report_activity(STATE_RUNNING, "audits searches of ivfpq indexes");
            audit_or_report(record, bytes);
            pgstat_report_activity(STATE_IDLE, nullptr);
            MemoryContextReset(context);
            LWLockAcquire(audits->lock, LW_EXCLUSIVE);
            audits->allowance -= seconds_now() - start;
            LWLockRelease(audits->lock);
            last = GetCurrentTimestamp();
            continue;
        }
        if (TimestampDifferenceExceeds(last, GetCurrentTimestamp(), idle_ms)) return;
        WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, idle_ms / 4,
                  compat_wait_event("PgwarpAuditIdle"));
    }
}

// The database of the first record, which this worker leaves to another; invalid: none waits.
Oid hand_on() {
    AuditRecord record;
    LWLockAcquire(audits->lock, LW_EXCLUSIVE);
    audits->worker_pid = 0;
    const Oid database = first_record(&record) ? record.database : InvalidOid;
    if (OidIsValid(database)) audits->started_at = GetCurrentTimestamp();
    LWLockRelease(audits->lock);
    if (!OidIsValid(database)) return InvalidOid;
    StartTransactionCommand();
    const bool there = SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database));
    CommitTransactionCommand();
    return there ? database : InvalidOid;
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

extern "C" PGWARP_EXPORT void pgwarp_audit_main(Datum argument) {
    pqsignal(SIGTERM, die);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    BackgroundWorkerUnblockSignals();
    if (!audits || !claim()) proc_exit(0);
    before_shmem_exit(leave, Datum{0});
    BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(argument), InvalidOid, 0);
    run_audits();
    const Oid next = hand_on();
    if (OidIsValid(next)) start_audit_worker(next);
    proc_exit(0);
}
