// Training an index in place.
//
// The model is written to new pages, then the metapage names it: from that record on, new entries
// go to its lists. The entries of the pending list follow one by one, each in one WAL record. Scans
// read the pending list before the other lists, so an entry is seen in one place or the other, and
// a scan that sees it in both drops one. A crash or a cancelled VACUUM leaves the index right at
// any point: what is still pending is searched exactly, and the next VACUUM goes on.
//
// Rows are read by their pending entries, with fresh snapshots; an entry whose row cannot be seen
// now stays pending for the next VACUUM, which removes it or moves it.

#include <algorithm>

#include "kernels/executor.h"
#include "extension/guard.h"
#include "extension/ivfpq.h"
#include "extension/ivfpq_bulk.h"
#include "extension/ivfpq_curve.h"
#include "extension/ivfpq_encode.h"
#include "extension/ivfpq_lists.h"
#include "extension/ivfpq_model.h"
#include "extension/ivfpq_page.h"
#include "extension/ivfpq_rows.h"
#include "extension/ivfpq_selftrain.h"
#include "extension/ivfpq_train.h"

extern "C" {
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

// VACUUM does not hold back the cleaning of row versions elsewhere, for it looks at none. Here it
// does, and another VACUUM must not take the long vectors of the table's rows away from under our
// snapshots. Returns whether VACUUM was exempt. (Ending the transaction resets the flag.)
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

// What others have committed by now: neither VACUUM's own snapshot, from before it was seen to look
// at rows, nor GetLatestSnapshot(), which a VACUUM with parallel workers must not call.
Snapshot fresh_snapshot() {
    static SnapshotData snapshot;
    snapshot.snapshot_type = SNAPSHOT_MVCC;
    return RegisterSnapshot(GetSnapshotData(&snapshot));
}

// An expression runs code of users, which may do what PostgreSQL forbids while there are workers:
// catch an error, for one.
bool must_wait(Relation index) {
    if (!IsInParallelMode() || RelationGetIndexExpressions(index) == NIL) return false;
    ereport(LOG, (errmsg("entries of index \"%s\" stay pending", RelationGetRelationName(index)),
                  errdetail("A parallel VACUUM cannot evaluate expressions."),
                  errhint("Autovacuum will go on, or VACUUM (PARALLEL 0).")));
    return true;
}

void write_logged_page(void* index, BlockNumber block, Page image) {
    write_page(static_cast<Relation>(index), block, image);
}

struct MoveState {
    Relation index;
    const MetaPage* meta;
    BlockNumber block;
    uint32 moved;
};

void move_rows(void* argument, const EncodedRows& rows) {
    MoveState* state = static_cast<MoveState*>(argument);
    for (Size i = 0; i < rows.count; ++i) {
        const Entry entry{number_tid(rows.tids[i]), rows.offsets[i],
                          rows.codes + i * state->meta->m};
        state->moved +=
            move_pending_entry(state->index, *state->meta, state->block, rows.lists[i], entry);
    }
}

// TIDs of one pending page; none where it left the list.
uint32 copy_tids(Relation index, BlockNumber block, uint64* tids, BlockNumber* next) {
    const EntryLayout layout = EntryLayout::of(0);
    Buffer buffer;
    *next = InvalidBlockNumber;
    if (!read_list_page(index, block, pending_list, layout, BUFFER_LOCK_SHARE, &buffer)) return 0;
    Page page = BufferGetPage(buffer);
    const uint32 count = page_tail(page)->count;
    for (uint32 i = 0; i < count; ++i) tids[i] = tid_number(page_tids(page, layout)[i]);
    *next = page_tail(page)->next;
    UnlockReleaseBuffer(buffer);
    return count;
}

// Moves the entries of one page, and those that take their slots, until all that are left there
// were tried and could not be read. Returns the page that follows.
BlockNumber move_page(Relation heap, Relation index, BlockNumber block, EncodePass* pass,
                      MoveState* state) {
    uint64* tids = static_cast<uint64*>(palloc(max_page_entries * sizeof(uint64)));
    uint64* unread = static_cast<uint64*>(palloc(max_page_entries * sizeof(uint64)));
    uint32 unread_count = 0;
    BlockNumber next;
    state->block = block;
    while (true) {
        compat_vacuum_delay();
        const uint32 count = copy_tids(index, block, tids, &next);
        Snapshot snapshot = fresh_snapshot();
        RowReader* reader = open_row_reader(heap, index, snapshot);
        uint32 tried = 0;
        uint32 still_unread = 0;
        for (uint32 i = 0; i < count; ++i) {
            const bool seen_before = std::binary_search(unread, unread + unread_count, tids[i]);
            const Vector* row = seen_before ? nullptr : read_row(reader, number_tid(tids[i]));
            if (!row) {
                tids[still_unread++] = tids[i];
                continue;
            }
            ++tried;
            encode_one_row(pass, tids[i], row);
        }
        flush_encode(pass);
        close_row_reader(reader);
        UnregisterSnapshot(snapshot);
        std::copy(tids, tids + still_unread, unread);
        unread_count = still_unread;
        std::sort(unread, unread + unread_count);
        if (tried == 0) break;
    }
    pfree(tids);
    pfree(unread);
    return next;
}

void move_all(Relation heap, Relation index, const MetaPage& meta, EncodePass* pass,
              MoveState* state) {
    const ListPlace place = read_place(index, meta, pending_list);
    BlockNumber block = place.head;
    BlockNumber steps = 0;
    while (BlockNumberIsValid(block)) {
        count_step(index, block, place, &steps);
        block = move_page(heap, index, block, pass, state);
    }
}

// Draws entries of the pending list, then reads their rows in the order they lie in.
Sample sample_pending(Relation heap, Relation index, const MetaPage& meta, uint32 rows) {
    Sample sample = new_sample(meta.dims, rows);
    Random random(static_cast<uint64>(meta.seed));
    uint64* tids = static_cast<uint64*>(palloc(max_page_entries * sizeof(uint64)));
    const ListPlace place = read_place(index, meta, pending_list);
    BlockNumber steps = 0;
    for (BlockNumber block = place.head; BlockNumberIsValid(block);) {
        compat_vacuum_delay();
        count_step(index, block, place, &steps);
        const uint32 count = copy_tids(index, block, tids, &block);
        for (uint32 i = 0; i < count; ++i) {
            const uint32 slot = draw_slot(&sample, &random);
            if (slot < sample.room) sample.tids[slot] = tids[i];
        }
    }
    pfree(tids);
    std::sort(sample.tids, sample.tids + sample.count);

    Snapshot snapshot = fresh_snapshot();
    RowReader* reader = open_row_reader(heap, index, snapshot);
    const uint32 drawn = sample.count;
    sample.count = 0;
    for (uint32 i = 0; i < drawn; ++i) {
        compat_vacuum_delay();
        const Vector* row = read_row(reader, number_tid(sample.tids[i]));
        if (!row) continue;
        index_form(meta.metric, row->x, meta.dims, sample.rows + Size{sample.count} * meta.dims);
        sample.tids[sample.count++] = sample.tids[i];
    }
    close_row_reader(reader);
    UnregisterSnapshot(snapshot);
    // As many of all entries have rows to learn from as of those drawn.
    if (drawn > 0) sample.seen = sample.seen * sample.count / drawn;
    shuffle_sample(&sample, &random);
    return sample;
}

// Opened as VACUUM has locked it.
Relation open_heap_of(Relation index) {
    return table_open(IndexGetRelation(RelationGetRelid(index), false), NoLock);
}

}  // namespace

double pending_rows(Relation index, const MetaPage& meta) {
    if (meta.pending.pages == 0) return 0;
    // All pages are full but the last; nobody but VACUUM, who asks, takes it away.
    const EntryLayout layout = EntryLayout::of(0);
    Buffer buffer;
    if (!read_list_page(index, meta.pending.tail, pending_list, layout, BUFFER_LOCK_SHARE, &buffer))
        report_damage(index, meta.pending.tail, "it is not the tail of its list");
    const uint32 last = page_tail(BufferGetPage(buffer))->count;
    UnlockReleaseBuffer(buffer);
    return static_cast<double>(meta.pending.pages - 1) * layout.capacity + last;
}

void train_in_place(Relation index) {
    if (must_wait(index)) return;
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq training", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    Relation heap = open_heap_of(index);
    MetaPage meta = read_meta(index);
    const bool exempt = set_vacuum_flag(false);
    const double rows = pending_rows(index, meta);
    // VACUUM has other work than this, and does it with or without a model.
    const TrainingPlan plan = plan_training(RelationGetRelationName(index), rows, meta, WARNING);
    const bool can_train =
        !needs_lapack(meta) || check_lapack(quantizer_name(meta.quantizer), WARNING);
    Sample sample = {};
    if (plan.sample_rows > 0 && can_train)
        sample = sample_pending(heap, index, meta, plan.sample_rows);
    // Entries of rows long dead are counted as pending, and are no rows to learn from.
    if (sample.count > 0 &&
        (sample.count == plan.sample_rows || sample.seen >= least_rows_to_train)) {
        const Sample queries = set_queries_aside(&sample);
        Owned<Executor>* executor = owned_by<Executor>(context);
        guarded([&] {
            executor->object = make_cpu_executor(1, &QueryCancelPending, &ProcDiePending).release();
        });
        const Quantizer model = train_model(executor->object, plan, &sample, &meta);

        meta.build_id = new_build_id();
        meta.rows_at_build = static_cast<uint64>(rows);
        const BlockNumber pages = place_model(&meta, 0);
        place_model(&meta, extend_by(index, pages));
        write_model(meta, model, write_logged_page, index);
        write_training(index, meta);

        MoveState state{index, &meta, InvalidBlockNumber, 0};
        const EncodeInput input{model, queries.rows, queries.count};
        EncodePass* pass = begin_encode(input, {move_rows, &state});
        move_all(heap, index, meta, pass, &state);
        const CurveQuery* curve_queries =
            make_curve_queries(input, queries.tids, neighbors_of(pass), 1);
        meta.curve = measure_curve(index, meta, curve_queries, queries.count);
        write_training(index, meta);
        ereport(LOG, (errmsg("index \"%s\" was trained with %u rows and has %u lists now",
                             RelationGetRelationName(index), sample.count, meta.lists)));
    }
    set_vacuum_flag(exempt);
    table_close(heap, NoLock);
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
}

void move_pending(Relation index) {
    if (must_wait(index)) return;
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq pending", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    Relation heap = open_heap_of(index);
    const MetaPage meta = read_meta(index);
    MoveState state{index, &meta, InvalidBlockNumber, 0};
    const bool exempt = set_vacuum_flag(false);
    EncodePass* pass = begin_encode({read_model(index, meta), nullptr, 0}, {move_rows, &state});
    move_all(heap, index, meta, pass, &state);
    set_vacuum_flag(exempt);
    table_close(heap, NoLock);
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
}

}  // namespace pgwarp
