#include "extension/index/attributes.h"
#include "extension/index/page_changes.h"
#include "extension/create/vacuum_rows.h"

extern "C" {
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

// PROC_IN_VACUUM exempts VACUUM from holding back the removal of dead rows, as VACUUM usually reads
// no rows. Here it does, and another VACUUM must not remove TOASTed vectors that our snapshots see.
// Returns whether VACUUM was exempt before. (The end of the transaction resets the flag.)
bool set_vacuum_flag(bool exempt) {
    LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
    const bool was_exempt = MyProc->statusFlags & PROC_IN_VACUUM;
    if (exempt)
        MyProc->statusFlags |= PROC_IN_VACUUM;
    else
        MyProc->statusFlags &= ~PROC_IN_VACUUM;
    ProcGlobal->statusFlags[MyProc->pgxactoff] = MyProc->statusFlags;
    LWLockRelease(ProcArrayLock);
    return was_exempt;
}

}  // namespace

VacuumRows begin_vacuum_rows(Relation index) {
    VacuumRows rows;
    rows.context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq vacuum", ALLOCSET_DEFAULT_SIZES);
    rows.before = MemoryContextSwitchTo(rows.context);
    rows.heap = table_open(IndexGetRelation(RelationGetRelid(index), false), NoLock);
    rows.was_exempt = set_vacuum_flag(false);
    return rows;
}

void end_vacuum_rows(VacuumRows* rows) {
    set_vacuum_flag(rows->was_exempt);
    table_close(rows->heap, NoLock);
    MemoryContextSwitchTo(rows->before);
    MemoryContextDelete(rows->context);
}

void set_exempt(const VacuumRows& rows, bool exempt) {
    set_vacuum_flag(exempt && rows.was_exempt);
}

const char* reason_to_wait(Relation index, RowWork work) {
    if (!IsInParallelMode()) return nullptr;
    if (RelationGetIndexExpressions(index) != NIL ||
        (work.predicate && RelationGetIndexPredicate(index) != NIL))
        return "A parallel VACUUM cannot evaluate expressions.";
    const Oid hash = work.attributes ? unsafe_hash(index) : InvalidOid;
    if (!OidIsValid(hash)) return nullptr;
    return psprintf("A parallel VACUUM cannot call %s, which is not parallel safe.",
                    format_procedure(hash));
}

namespace {

// Whether VACUUM may go on: not after a cancel, a shutdown, damage, or a lack of memory or disk.
bool may_go_on_after(const ErrorData* error) {
    switch (error->sqlerrcode) {
        case ERRCODE_QUERY_CANCELED:
        case ERRCODE_ADMIN_SHUTDOWN:
        case ERRCODE_CRASH_SHUTDOWN:
        case ERRCODE_INDEX_CORRUPTED:
        case ERRCODE_DATA_CORRUPTED:
        case ERRCODE_OUT_OF_MEMORY:
        case ERRCODE_DISK_FULL:
            return false;
        default:
            return ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_TO_CATEGORY(ERRCODE_IO_ERROR);
    }
}

}  // namespace

void try_row_work(Relation index, void (*work)(Relation index, BufferAccessStrategy ring),
                  BufferAccessStrategy ring) {
    // No other code of users runs. In parallel mode the work waits, see reason_to_wait().
    if ((RelationGetIndexExpressions(index) == NIL && RelationGetIndexPredicate(index) == NIL) ||
        IsInParallelMode()) {
        work(index, ring);
        return;
    }
    const MemoryContext before = CurrentMemoryContext;
    const ResourceOwner owner = CurrentResourceOwner;
    const bool was_exempt = MyProc->statusFlags & PROC_IN_VACUUM;
    // Deleted in either case, with what the work has allocated.
    const MemoryContext context =
        AllocSetContextCreate(before, "ivfpq row work", ALLOCSET_DEFAULT_SIZES);
    const char* volatile reason = "";
    // Only the end of a subtransaction cleans up after a function that has failed.
    BeginInternalSubTransaction(nullptr);
    MemoryContextSwitchTo(context);
    PG_TRY();
    {
        work(index, ring);
        ReleaseCurrentSubTransaction();
        MemoryContextSwitchTo(before);
        CurrentResourceOwner = owner;
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(before);
        ErrorData* error = CopyErrorData();
        FlushErrorState();
        RollbackAndReleaseCurrentSubTransaction();
        MemoryContextSwitchTo(before);
        CurrentResourceOwner = owner;
        set_vacuum_flag(was_exempt);
        if (!may_go_on_after(error)) ReThrowError(error);
        ereport(WARNING,
                (errmsg("entries of index \"%s\" stay pending", RelationGetRelationName(index)),
                 errdetail_internal("%s", error->message),
                 error->context ? errcontext_msg("%s", error->context) : 0,
                 errhint("Correct what the index's expressions call; the next VACUUM goes on.")));
        reason = pstrdup(error->message);
        FreeErrorData(error);
    }
    PG_END_TRY();
    write_pending_reason(index, reason);
    MemoryContextDelete(context);
}

Snapshot fresh_snapshot() {
    static SnapshotData snapshot;
    snapshot.snapshot_type = SNAPSHOT_MVCC;
    return RegisterSnapshot(GetSnapshotData(&snapshot));
}

}  // namespace pgwarp
