// Replacing the lists of an index.
//
//     1. a model, trained with a sample of the rows, goes to new pages, with empty lists; the
//        metapage names these as its other lists
//     2. the rows of all entries are encoded, and appended to the new lists
//     3. the curve is measured with the new lists
//     4. the rows of entries that came to the current lists meanwhile are appended, too, until few
//        are left
//     5. inserts wait while the TIDs of the last entries are read. One WAL record puts these TIDs
//        on the pending list, and makes the new lists the current ones, and the old lists the
//        other ones
//     6. once no snapshot is left that is older than this record, the old lists are emptied; a
//        metapage without other lists makes the pages of their model lost ones, which are reclaimed
//
// Up to 5, scans read the current lists only, and inserts go there only. A crash or an error leaves
// other lists that were never current; the next VACUUM begins with emptying them. Readers with the
// metapage of before go on with the old lists, which have all entries that their snapshots see; a
// scan that has read a newer pending list begins again (scan/entries). On a standby, queries with
// such snapshots end as they do when rows are removed that they see: before 5, as the new lists may
// lack rows that they see, and before 6, as they may read the old lists.
//
// An entry of a list stays where it is unless VACUUM moves it, so what came to a list is what lies
// behind the place up to which the list was read.
//
// Rows are read with fresh snapshots. Where none sees a row, it belongs to a transaction in
// progress, or is dead and an older snapshot may see it. Its vector is not read, as TOAST may not
// have it any more: its TID goes to the pending list, too. Those that can be read move to lists at
// once, the others in the next VACUUM.

#include <algorithm>

#include "kernels/executor.h"
#include "extension/create/encode.h"
#include "extension/create/measure.h"
#include "extension/create/plan.h"
#include "extension/create/renew.h"
#include "extension/create/selftrain.h"
#include "extension/create/train.h"
#include "extension/create/vacuum_rows.h"
#include "extension/curve/curve.h"
#include "extension/index/buffers.h"
#include "extension/index/column.h"
#include "extension/index/lapack_check.h"
#include "extension/index/list_changes.h"
#include "extension/index/options.h"
#include "extension/index/page_changes.h"
#include "extension/index/place.h"
#include "extension/index/tid.h"
#include "extension/scan/rows.h"
#include "extension/scan/tid_set.h"
#include "extension/util/pause.h"

extern "C" {
#include "access/transam.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

// Until other transactions have ended.
void nap() {
    pg_usleep(10000);
    CHECK_FOR_INTERRUPTS();
}

// --- other lists

// Whether a transaction may have a snapshot from before the lists were replaced.
bool may_be_read(const OtherLists& other) {
    if (other.replaced_at == 0) return false;
    const auto replaced = FullTransactionIdFromU64(other.replaced_at);
    // No snapshot is as old as that; beyond it, transaction numbers could not be compared.
    constexpr uint64 oldest = MaxTransactionId / 2;
    if (U64FromFullTransactionId(ReadNextFullTransactionId()) > other.replaced_at + oldest)
        return false;
    int count;
    pfree(GetCurrentVirtualXIDs(XidFromFullTransactionId(replaced), true, false, PROC_IN_VACUUM,
                                &count));
    return count > 0;
}

// Empties the other lists, if there are any. Returns false and leaves them while a transaction may
// still read them.
bool empty_other_lists(Relation index, BufferAccessStrategy ring) {
    const MetaPage meta = read_meta(index);
    if (meta.other.lists == 0) return true;
    if (may_be_read(meta.other)) return false;
    if (meta.other.replaced_at > 0)
        log_conflict(index, meta.other.directory, FullTransactionIdFromU64(meta.other.replaced_at));
    const MetaPage other = meta_of_other(meta);
    const IndexBulkDeleteCallback all = [](ItemPointer, void*) { return true; };
    Removal removal{all, nullptr, 0, 0};
    read_through(ring, [&] {
        for (uint32 list = 0; list < directory_lists(other); ++list) {
            vacuum_list(index, other, list, &removal);
            // A page that an append has added, and did not come to fill.
            drop_empty_tail(index, other, list);
        }
    });
    write_other_lists(index, {});
    return true;
}

// --- whether to renew

// Lists grow with the square root of the rows.
constexpr double most_growth = 2.25;
constexpr double least_growth = 0.25;  // too many lists cost pages, not recall: later than growth
// Of the squared distance of rows to their lists, which is the median of curve_trial_queries
// queries: at 1.5, chance made new lists.
constexpr double most_drift = 4;

bool have_outgrown(const MetaPage& meta, double entries) {
    const auto at_build = static_cast<double>(std::max<uint64>(meta.rows_at_build, 1));
    return !meta.asked_lists &&
           (entries >= most_growth * at_build || entries <= least_growth * at_build);
}

bool have_drifted(const MetaPage& meta) {
    return meta.trained_nearest > 0 && was_measured(meta) &&
           meta.usual.nearest > most_drift * meta.trained_nearest;
}

// Whether the plan's number of lists differs from that of the index by enough to make new lists.
bool plans_others(const TrainingPlan& plan, const MetaPage& meta) {
    const double times = static_cast<double>(plan.lists) / meta.lists;
    // Less than 1.5, which most_growth gives: numbers of lists are rounded.
    constexpr double worth = 1.4;
    return times >= worth || times <= 1 / worth;
}

bool must_wait(Relation index) {
    const char* reason = reason_to_wait(index, {.predicate = false, .attributes = true});
    if (!reason) return false;
    ereport(LOG, (errmsg("index \"%s\" keeps its lists, though its rows have outgrown them",
                         RelationGetRelationName(index)),
                  errdetail_internal("%s", reason),
                  errhint("Autovacuum will go on, or VACUUM (PARALLEL 0).")));
    return true;
}

// --- copying

// Up to where a list was read.
struct Position {
    BlockNumber block = InvalidBlockNumber;  // the list was empty
    uint32 slot = 0;
};

struct Renewal {
    const VacuumRows& rows;
    Relation index;
    BufferAccessStrategy ring;
    const MetaPage& before;
    MetaPage next;
    Position* positions;  // of the lists before
    EncodePass* pass;
    // TIDs of rows that no snapshot has seen yet.
    TidSet* left;
    uint64 left_count;
    uint64 copied;
    double waited;  // milliseconds that inserts waited at most
};

void append_rows(void* argument, const EncodedRows& rows) {
    auto* renewal = static_cast<Renewal*>(argument);
    const MetaPage& next = renewal->next;
    for (Size i = 0; i < rows.count; ++i)
        append_entry(renewal->index, next, rows.lists[i],
                     {number_tid(rows.tids[i]), rows.offsets[i], rows.codes + i * next.m,
                      rows.attributes + i * next.attributes.entry_bytes(),
                      rows.refinements + i * refinement_layout(next).bytes()});
    renewal->copied += rows.count;
}

// Adds the TIDs of entries that came to a list since it was read last; returns how many.
uint64 collect_list(Renewal* renewal, uint32 list, TidSet* tids) {
    const EntryLayout layout = layout_of(renewal->before, list);
    Position* at = &renewal->positions[list];
    if (!BlockNumberIsValid(at->block))
        at->block = read_place(renewal->index, renewal->before, list).head;
    uint64 numbers[max_page_entries];
    uint64 collected = 0;
    while (BlockNumberIsValid(at->block)) {
        Buffer buffer;
        if (!read_list_page(renewal->index, at->block, list, layout, BUFFER_LOCK_SHARE, &buffer))
            report_damage(renewal->index, at->block, "a page of another list points to it");
        Page page = BufferGetPage(buffer);
        const uint32 count = page_tail(page)->count;
        const BlockNumber next = page_tail(page)->next;
        for (uint32 i = at->slot; i < count; ++i)
            numbers[i] = tid_number(page_tids(page, layout)[i]);
        UnlockReleaseBuffer(buffer);
        for (uint32 i = at->slot; i < count; ++i) put_tid(tids, numbers[i]);
        collected += count - at->slot;
        at->slot = count;
        if (!BlockNumberIsValid(next)) break;
        *at = {next, 0};
        CHECK_FOR_INTERRUPTS();
    }
    return collected;
}

Size tid_memory() {
    return Size{1024} * maintenance_work_mem / 4;
}

void leave_row(Renewal* renewal, uint64 tid) {
    put_tid(renewal->left, tid);
    ++renewal->left_count;
}

// Encodes the rows that a snapshot sees.
void copy_rows(Renewal* renewal, TidSet* tids) {
    // A snapshot that is held keeps rows of all tables from being removed.
    constexpr uint32 rows_a_snapshot = 10000;
    uint64 tid;
    bool more = next_tid(tids, &tid);
    while (more) {
        Snapshot snapshot = fresh_snapshot();
        RowReader* reader = open_row_reader(renewal->rows.heap, renewal->index, snapshot);
        for (uint32 i = 0; more && i < rows_a_snapshot; ++i, more = next_tid(tids, &tid)) {
            compat_vacuum_delay();
            bool is_dead;
            if (!find_row(reader, number_tid(tid), &is_dead)) {
                if (!is_dead) leave_row(renewal, tid);
                continue;
            }
            const StoredVector row = read_found_row(reader);
            if (!row || kind_of(renewal->before.metric, row) == RowKind::out_of_range) {
                leave_row(renewal, tid);
                continue;
            }
            const IndexValues all = index_values(reader);
            encode_one_row(renewal->pass, tid, row, all.values, all.nulls);
        }
        flush_encode(renewal->pass);
        close_row_reader(reader);
        UnregisterSnapshot(snapshot);
    }
}

// Drops those of the rows left that are dead to all others. VACUUM's own snapshot is from when it
// began, and rows that were removed since are many in a busy table.
void drop_dead(Renewal* renewal) {
    if (renewal->left_count == 0) return;
    TidSet* tids = renewal->left;
    sort_tid_set(tids);
    renewal->left = open_tid_set(tid_memory());
    renewal->left_count = 0;
    set_exempt(renewal->rows, true);
    // Finds out which transactions are seen by all, whether or not it did so for this snapshot.
    GetOldestNonRemovableTransactionId(renewal->rows.heap);
    Snapshot snapshot = fresh_snapshot();
    RowReader* reader = open_row_reader(renewal->rows.heap, renewal->index, snapshot);
    for (uint64 tid; next_tid(tids, &tid);) {
        compat_vacuum_delay();
        bool is_dead;
        if (sees_row(reader, number_tid(tid), &is_dead) || !is_dead) leave_row(renewal, tid);
    }
    close_row_reader(reader);
    UnregisterSnapshot(snapshot);
    set_exempt(renewal->rows, false);
    close_tid_set(tids);
}

// Adds the TIDs of all entries that came since the last call; returns how many.
uint64 collect_entries(Renewal* renewal, TidSet* tids) {
    uint64 came = 0;
    for (uint32 list = 0; list < directory_lists(renewal->before); ++list)
        came += collect_list(renewal, list, tids);
    return came;
}

// Copies the entries that came since the last call, and those left then. Returns how many came.
uint64 copy_entries(Renewal* renewal) {
    TidSet* tids = renewal->left;
    uint64 came = 0;
    read_through(renewal->ring, [&] { came = collect_entries(renewal, tids); });
    // Pages where lists end are read again and again.
    renewal->ring = nullptr;
    sort_tid_set(tids);
    renewal->left = open_tid_set(tid_memory());
    renewal->left_count = 0;
    copy_rows(renewal, tids);
    close_tid_set(tids);
    drop_dead(renewal);
    return came;
}

// The rows that are not in the new lists.
uint32 take_left(Renewal* renewal, uint64* tids) {
    sort_tid_set(renewal->left);
    uint32 count = 0;
    while (count < most_left_tids && next_tid(renewal->left, &tids[count])) ++count;
    return count;
}

// Inserts wait while this runs: it reads no row. False: too many rows are left.
bool replace(Renewal* renewal) {
    const Relation index = renewal->index;
    instr_time began, waited;
    INSTR_TIME_SET_CURRENT(began);
    lock_lists_of_inserts(index, ExclusiveLock);
    renewal->left_count += collect_entries(renewal, renewal->left);
    const bool replaces = renewal->left_count <= most_left_tids;
    if (replaces) {
        uint64* tids = static_cast<uint64*>(palloc(most_left_tids * sizeof(uint64)));
        const uint32 count = take_left(renewal, tids);
        renewal->next.rows_at_build = renewal->copied + count;
        log_conflict(index, renewal->next.directory, ReadNextFullTransactionId());
        replace_lists(index, renewal->next, tids, count);
    }
    unlock_lists_of_inserts(index, ExclusiveLock);
    INSTR_TIME_SET_CURRENT(waited);
    INSTR_TIME_SUBTRACT(waited, began);
    renewal->waited = std::max(renewal->waited, INSTR_TIME_GET_MILLISEC(waited));
    return replaces;
}

// Follows inserts until few are left, and lets them wait for these. False: rows of transactions in
// progress, or that old snapshots see, stay too many.
bool follow_and_replace(Renewal* renewal) {
    constexpr int most_rounds = 200;
    constexpr uint64 far_too_many = 16 * most_left_tids;
    for (int round = 0; round < most_rounds; ++round) {
        const uint64 came = copy_entries(renewal);
        if (renewal->left_count > far_too_many) return false;
        if (renewal->left_count > most_left_tids) {
            nap();
            continue;
        }
        pause_at("replace");
        // About as many come while inserts are kept waiting.
        if (renewal->left_count + came <= most_left_tids && replace(renewal)) return true;
    }
    return false;
}

EncodePass* begin_pass(Renewal* renewal, const EncodeInput& input) {
    return begin_encode(input, {append_rows, renewal});
}

bool renew(const VacuumRows& rows, Relation index, const MetaPage& before, const TrainingPlan& plan,
           Sample* sample, BufferAccessStrategy ring, double* waited) {
    Sample queries = set_queries_aside(sample);
    queries.count = std::min(queries.count, most_queries(sample->seen, before.dims));
    Renewal renewal{rows, index, ring, before, before, nullptr, nullptr, nullptr, 0, 0, 0};
    MetaPage* next = &renewal.next;
    const Quantizer model = train_and_write(index, plan, sample, next);
    write_other_lists(index, {0, next->centroids, next->directory, next->lists, next->m});
    pause_at("renew");

    const uint32 lists = directory_lists(before);
    renewal.positions = static_cast<Position*>(
        MemoryContextAllocHuge(CurrentMemoryContext, Size{lists} * sizeof(Position)));
    std::fill_n(renewal.positions, lists, Position{});
    renewal.left = open_tid_set(tid_memory());
    EncodeInput input{model,
                      queries.rows,
                      queries.count,
                      type_of(index),
                      copy_attributes(index),
                      refinement_layout(*next),
                      next->has_undirected_list != 0};
    renewal.pass = begin_pass(&renewal, input);
    copy_entries(&renewal);
    next->rows_at_build = renewal.copied;
    const CurveQuery* curve_queries =
        make_curve_queries(input, queries.tids, neighbors_of(renewal.pass), 1);
    next->largest_norm = largest_norm_of(*next, curve_queries, queries.count);
    set_curve(next, measure_curve(index, *next, curve_queries, queries.count));
    next->forget_learned();
    next->curve_source = CurveSource::rows;
    next->curve_at = GetCurrentTimestamp();
    next->trained_nearest = next->usual.nearest;

    input.query_count = 0;
    renewal.pass = begin_pass(&renewal, input);
    const bool replaced = follow_and_replace(&renewal);
    close_tid_set(renewal.left);
    *waited = renewal.waited;
    return replaced;
}

void report_unseen_rows(Relation index) {
    ereport(LOG,
            (errmsg("index \"%s\" keeps its lists, though its rows have outgrown them",
                    RelationGetRelationName(index)),
             errdetail("Too many rows are of transactions in progress, or were removed and may "
                       "be seen still."),
             errhint("The next VACUUM tries again.")));
}

// Whether so few of the sampled rows were seen that too many would be left: known before the work.
bool sees_too_few(const Sample& drawn, const Sample& sample, double entries) {
    if (sample.room == 0 || sample.share == 0) return true;
    const double seen = sample.count / sample.share / std::min(drawn.count, sample.room);
    // Some of those that were not seen are dead, or will be seen soon.
    return (1 - seen) * entries > 4.0 * most_left_tids;
}

// Trains with a sample of the entries' rows.
bool draw_and_renew(const VacuumRows& rows, Relation index, const MetaPage& meta, double entries,
                    BufferAccessStrategy ring) {
    const char* name = RelationGetRelationName(index);
    // Where it does not fit into memory, or a library is missing, the lists stay.
    if (needs_lapack(meta) && !check_lapack(quantizer_name(meta.quantizer), DEBUG1)) return false;
    const TrainingPlan plan = plan_training(name, entries, meta, DEBUG1);
    if (plan.sample_rows == 0 || (!have_drifted(meta) && !plans_others(plan, meta))) return false;
    Random random(static_cast<uint64>(meta.seed));
    Sample drawn = draw_from_lists(index, meta, ring, plan.sample_rows, &random);
    Sample sample = read_drawn(rows.heap, index, meta, &drawn, plan.sample_rows, &random);
    double waited = 0;
    if (sees_too_few(drawn, sample, entries) || sample.count < least_rows_to_train / 2 ||
        !renew(rows, index, meta, plan, &sample, ring, &waited)) {
        report_unseen_rows(index);
        return false;
    }
    ereport(
        LOG,
        (errmsg("index \"%s\" was trained with %u rows and has %u lists now", name, sample.count,
                read_meta(index).lists),
         errdetail(
             "It had %u lists for %llu rows, and has %.0f rows. Inserts waited at most %.1f ms.",
             meta.lists, static_cast<unsigned long long>(meta.rows_at_build), entries, waited)));
    return true;
}

}  // namespace

bool renew_lists(Relation index, BufferAccessStrategy ring) {
    if (!empty_other_lists(index, ring)) return false;
    const MetaPage meta = read_meta(index);
    double entries = 0;
    read_through(ring, [&] { entries = static_cast<double>(count_entries(index, meta)); });
    if (entries < static_cast<double>(least_rows_to_train) ||
        (!have_outgrown(meta, entries) && !have_drifted(meta)) || must_wait(index))
        return false;
    VacuumRows rows = begin_vacuum_rows(index);
    const bool renewed = draw_and_renew(rows, index, meta, entries, ring);
    end_vacuum_rows(&rows);
    if (renewed && read_meta(index).pending.pages > 0) move_pending(index, ring);
    // The old lists can be emptied once no transaction may read them. This waits half a second at
    // most, for short queries; after that, the next VACUUM empties them.
    constexpr int tries = 50;
    for (int i = 0; i < tries && !empty_other_lists(index, ring); ++i) nap();
    return renewed;
}

}  // namespace pgwarp
