// Training an index in place.
//
// The model is written to new pages, then the metapage names it: from that WAL record on, new
// entries go to its lists. The pending entries follow one by one, each in one WAL record. Scans
// read the pending list before the other lists, so a scan sees an entry in one place or the other,
// and drops one of two. A crash or a cancelled VACUUM leaves the index valid at any point: pending
// entries are searched exactly, and the next VACUUM continues.
//
// Rows are read through their pending entries, with fresh snapshots. An entry whose row is not
// visible now stays pending for the next VACUUM, which removes or moves it.

#include <algorithm>
#include <utility>

#include "kernels/executor.h"
#include "extension/guard.h"
#include "extension/index/column.h"
#include "extension/index/format.h"
#include "extension/index/lapack_check.h"
#include "extension/index/options.h"
#include "extension/index/buffers.h"
#include "extension/create/bulk.h"
#include "extension/curve/curve.h"
#include "extension/create/encode.h"
#include "extension/index/lists.h"
#include "extension/index/model.h"
#include "extension/index/list_changes.h"
#include "extension/index/page_changes.h"
#include "extension/index/place.h"
#include "extension/scan/rows.h"
#include "extension/create/selftrain.h"
#include "extension/create/train.h"
#include "extension/create/vacuum_rows.h"
#include "extension/util/pause.h"

extern "C" {
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

bool must_wait(Relation index) {
    const char* reason = reason_to_wait(index, {.predicate = false, .attributes = true});
    if (!reason) return false;
    ereport(LOG, (errmsg("entries of index \"%s\" stay pending", RelationGetRelationName(index)),
                  errdetail_internal("%s", reason),
                  errhint("Autovacuum will go on, or VACUUM (PARALLEL 0).")));
    return true;
}

void write_logged_page(void* index, BlockNumber block, Page image) {
    write_page(static_cast<Relation>(index), block, image);
}

struct MoveState {
    Relation index;
    BufferAccessStrategy ring;
    const MetaPage* meta;
    BlockNumber block;
    uint32 moved;
};

void move_rows(void* argument, const EncodedRows& rows) {
    MoveState* state = static_cast<MoveState*>(argument);
    for (Size i = 0; i < rows.count; ++i) {
        const Entry entry{number_tid(rows.tids[i]), rows.offsets[i],
                          rows.codes + i * state->meta->m,
                          rows.attributes + i * state->meta->attributes.entry_bytes(),
                          rows.refinements + i * refinement_layout(*state->meta).bytes()};
        pause_at("move");
        state->moved +=
            move_pending_entry(state->index, *state->meta, state->block, rows.lists[i], entry);
    }
}

// Copies the TIDs of one pending page; none where the page has left the list.
uint32 copy_tids(Relation index, BufferAccessStrategy ring, BlockNumber block, uint64* tids,
                 BlockNumber* next) {
    const EntryLayout layout = EntryLayout::without_codes();
    uint32 count = 0;
    *next = InvalidBlockNumber;
    read_through(ring, [&] {
        Buffer buffer;
        if (!read_list_page(index, block, pending_list, layout, BUFFER_LOCK_SHARE, &buffer)) return;
        Page page = BufferGetPage(buffer);
        count = page_tail(page)->count;
        for (uint32 i = 0; i < count; ++i) tids[i] = tid_number(page_tids(page, layout)[i]);
        *next = page_tail(page)->next;
        UnlockReleaseBuffer(buffer);
    });
    return count;
}

// Rows out of range lie in the pending list for good.
bool stays_pending(const MetaPage& meta, const StoredVector& row) {
    return kind_of(meta.metric, row) == RowKind::out_of_range;
}

// Moves the entries of one page, and those that then fill their slots, until only entries are left
// whose rows could not be read, or that stay. Returns the following page.
BlockNumber move_page(Relation heap, Relation index, BlockNumber block, EncodePass* pass,
                      MoveState* state) {
    uint64* tids = static_cast<uint64*>(palloc(max_page_entries * sizeof(uint64)));
    uint64* unread = static_cast<uint64*>(palloc(max_page_entries * sizeof(uint64)));
    uint32 unread_count = 0;
    BlockNumber next;
    state->block = block;
    while (true) {
        compat_vacuum_delay();
        const uint32 count = copy_tids(index, state->ring, block, tids, &next);
        Snapshot snapshot = fresh_snapshot();
        RowReader* reader = open_row_reader(heap, index, snapshot);
        uint32 tried = 0;
        uint32 still_unread = 0;
        for (uint32 i = 0; i < count; ++i) {
            const bool seen_before = std::binary_search(unread, unread + unread_count, tids[i]);
            const StoredVector row =
                seen_before ? StoredVector{} : read_row(reader, number_tid(tids[i]));
            if (!row || stays_pending(*state->meta, row)) {
                tids[still_unread++] = tids[i];
                continue;
            }
            ++tried;
            const IndexValues all = index_values(reader);
            encode_one_row(pass, tids[i], row, all.values, all.nulls);
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

// Draws among the pending entries whose rows are visible now, and counts these. The others belong
// to transactions in progress or to dead rows: the model must not be planned for them.
Sample draw_pending(Relation heap, Relation index, const MetaPage& meta, BufferAccessStrategy ring,
                    Random* random) {
    const ListPlace place = read_place(index, meta, pending_list);
    Sample drawn = {};
    drawn.room = static_cast<uint32>(
        std::min<Size>(Size{place.pages} * max_page_entries, most_sample_rows(meta)));
    drawn.tids = static_cast<uint64*>(
        MemoryContextAllocHuge(CurrentMemoryContext, std::max(drawn.room, 1u) * sizeof(uint64)));
    uint64* tids = static_cast<uint64*>(palloc(max_page_entries * sizeof(uint64)));
    BlockNumber steps = 0;
    for (BlockNumber block = place.head; BlockNumberIsValid(block);) {
        compat_vacuum_delay();
        count_step(index, block, place, &steps);
        const uint32 count = copy_tids(index, ring, block, tids, &block);
        Snapshot snapshot = fresh_snapshot();
        RowReader* reader = open_row_reader(heap, index, snapshot);
        for (uint32 i = 0; i < count; ++i) {
            CHECK_FOR_INTERRUPTS();
            if (!sees_row(reader, number_tid(tids[i]))) continue;
            const uint32 slot = draw_slot(&drawn, random);
            if (slot < drawn.room) drawn.tids[slot] = tids[i];
        }
        close_row_reader(reader);
        UnregisterSnapshot(snapshot);
    }
    pfree(tids);
    return drawn;
}

// Trains and writes the model, moves the pending entries to its lists, and measures the recall
// curve.
void train_from(Relation heap, Relation index, MetaPage* meta, const TrainingPlan& plan,
                Sample* sample, BufferAccessStrategy ring) {
    const Sample queries = set_queries_aside(sample);
    const Quantizer model = train_and_write(index, plan, sample, meta);
    write_training(index, *meta);
    pause_at("train");

    MoveState state{index, ring, meta, InvalidBlockNumber, 0};
    const EncodeInput input{model,          queries.rows,           queries.count,
                            type_of(index), copy_attributes(index), refinement_layout(*meta)};
    EncodePass* pass = begin_encode(input, {move_rows, &state});
    move_all(heap, index, *meta, pass, &state);
    const CurveQuery* curve_queries =
        make_curve_queries(input, queries.tids, neighbors_of(pass), 1);
    meta->largest_norm = largest_norm_of(*meta, curve_queries, queries.count);
    set_curve(meta, measure_curve(index, *meta, curve_queries, queries.count));
    meta->forget_learned();
    meta->curve_at = GetCurrentTimestamp();
    write_training(index, *meta);
    ereport(LOG, (errmsg("index \"%s\" was trained with %u rows and has %u lists now",
                         RelationGetRelationName(index), sample->count, meta->lists)));
}

}  // namespace

Quantizer train_and_write(Relation index, const TrainingPlan& plan, Sample* sample,
                          MetaPage* meta) {
    Owned<Executor>* executor = owned_by<Executor>(CurrentMemoryContext);
    guarded([&] { executor->object = make_cpu_executor(1, query_interrupts()).release(); });
    const Quantizer model = train_model(executor->object, plan, sample, meta);
    meta->build_id = new_build_id();
    meta->rows_at_build = sample->seen;
    meta->curve_rows = meta->removed_rows = 0;
    meta->trained_nearest = 0;
    const BlockNumber pages = place_model(meta, 0);
    place_model(meta, extend_by(index, pages));
    write_model(*meta, model, write_logged_page, index);
    return model;
}

Sample read_drawn(Relation heap, Relation index, const MetaPage& meta, Sample* drawn, uint32 rows,
                  Random* random) {
    Sample sample = new_sample(meta.dims, std::min(rows, drawn->count));
    for (uint32 i = 0; i < sample.room; ++i)
        std::swap(drawn->tids[i], drawn->tids[i + random->below(drawn->count - i)]);
    std::sort(drawn->tids, drawn->tids + sample.room);
    Snapshot snapshot = fresh_snapshot();
    RowReader* reader = open_row_reader(heap, index, snapshot);
    for (uint32 i = 0; i < sample.room; ++i) {
        compat_vacuum_delay();
        if (!read_row(reader, number_tid(drawn->tids[i]))) continue;
        row_form(meta.metric, floats_of_row(reader).values, meta.dims,
                 sample.rows + Size{sample.count} * meta.dims);
        sample.tids[sample.count++] = drawn->tids[i];
    }
    close_row_reader(reader);
    UnregisterSnapshot(snapshot);
    sample.seen = drawn->seen;
    keep_rows_in_lists(meta.metric, &sample);
    shuffle_sample(&sample, random);
    return sample;
}

void train_in_place(Relation index, BufferAccessStrategy ring) {
    if (must_wait(index)) return;
    VacuumRows rows = begin_vacuum_rows(index);
    MetaPage meta = read_meta(index);
    Random random(static_cast<uint64>(meta.seed));
    Sample drawn = {};
    // Without LAPACK only a warning: VACUUM continues with its other work.
    if (!needs_lapack(meta) || check_lapack(quantizer_name(meta.quantizer), WARNING))
        drawn = draw_pending(rows.heap, index, meta, ring, &random);
    if (drawn.seen >= least_rows_to_train_by_itself) {
        const char* name = RelationGetRelationName(index);
        const auto seen = static_cast<double>(drawn.seen);
        TrainingPlan plan = plan_training(name, seen, meta, WARNING);
        Sample sample = {};
        if (plan.sample_rows > 0) {
            sample = read_drawn(rows.heap, index, meta, &drawn, plan.sample_rows, &random);
            plan_for_lists(name, seen, least_rows_to_train_by_itself, meta, WARNING, &plan,
                           &sample);
        }
        if (sample.count > 0) train_from(rows.heap, index, &meta, plan, &sample, ring);
    }
    end_vacuum_rows(&rows);
}

void move_pending(Relation index, BufferAccessStrategy ring) {
    if (must_wait(index)) return;
    VacuumRows rows = begin_vacuum_rows(index);
    const MetaPage meta = read_meta(index);
    MoveState state{index, ring, &meta, InvalidBlockNumber, 0};
    EncodePass* pass =
        begin_encode({read_model(index, meta), nullptr, 0, type_of(index), copy_attributes(index),
                      refinement_layout(meta), meta.has_undirected_list != 0},
                     {move_rows, &state});
    move_all(rows.heap, index, meta, pass, &state);
    end_vacuum_rows(&rows);
}

}  // namespace pgwarp
