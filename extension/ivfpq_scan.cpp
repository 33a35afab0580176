// ORDER BY v <op> query: rounds of candidates from the lists, each ranked by exact distance.
//
// A round takes the nearest candidates, by their codes, from the lists nearest to the query, reads
// their rows, drops those the snapshot does not see, sorts by exact distance and hands the rows
// out. When more rows are wanted, the next round goes on behind the last candidate: candidates are
// ordered by (distance, TID), so the place to go on from is one pair, whatever the table's size.
// When the lists of a group hold no more, the next lists follow, until the index is exhausted.
//
// Entries of the pending list have no codes; they are ranked by exact distance at once. An entry
// can move from the pending list to another list between two rounds, when VACUUM trains the
// index, so the rows that were handed out from there are remembered.
//
// The first round may come from the service, which has its own arithmetic: its distances need not
// be ours to the last bit. So its candidates are remembered too, and the second round begins with
// the first candidate again and passes over them.
//
// Nothing is pinned or locked between two calls. That is safe for the snapshots of ordinary
// queries: a row whose TID was given to another row since the candidate was read is not visible.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/candidates.h"
#include "kernels/list_scan.h"
#include "kernels/mirror.h"
#include "kernels/nibble_scan.h"
#include "extension/ivfpq.h"
#include "extension/ivfpq_buffers.h"
#include "extension/ivfpq_curve.h"
#include "extension/ivfpq_limit.h"
#include "extension/ivfpq_lists.h"
#include "extension/ivfpq_model.h"
#include "extension/ivfpq_page.h"
#include "extension/ivfpq_rows.h"
#include "extension/scan_report.h"
#include "extension/service_client.h"
#include "extension/service_scan.h"
#include "extension/settings.h"

extern "C" {
#include "access/relscan.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

struct RankedRow {
    double distance;
    ItemPointerData tid;
};

struct ScanState {
    uint32 wanted_rows;     // as told by want_rows(); 0: the plan tells
    uint32 passed_over;     // likewise
    MemoryContext context;  // everything below; reset by a rescan
    RowReader* reader;
    Scratch* scratch;
    VectorCache* cache;

    Vector* query;
    float* form;  // the query as the model sees it, once it is ready
    bool form_ready;
    bool started;
    bool finished;
    uint32 limit;  // rows that will probably be fetched
    ScanReport report;

    // The model the lists were ranked with.
    MetaPage meta;
    float* terms;         // (lists)
    uint32* order;        // (lists), nearest first
    float* table;         // of the query: see read_table()
    NibbleTable nibbles;  // made of it where sub-quantizers have four bits

    // Where the next round goes on.
    uint32 group_begin;  // lists under way: order[group_begin .. group_end)
    uint32 group_end;
    Candidate list_floor;
    Candidate pending_floor;
    bool pending_done;
    uint64* handed_out;  // TIDs of the pending list and of the service's round, sorted
    Size handed_out_count;
    Size handed_out_room;
    bool handed_out_lost;  // too many to remember
    uint32 wanted;         // candidates of the next round
    uint32 repeated;       // beside those that the service had before
    int64 ranked;          // rows read so far
    double last_distance;  // handed out, for strict_order

    RankedRow* rows;  // of this round
    Candidate* candidates;
    Size candidate_room;  // bytes
    Size row_room;        // bytes
    Size row_count;
    Size row_next;
};

// Candidates of one round take 32 bytes, ranked rows 16, remembered TIDs 8: work_mem bounds all.
uint32 most_candidates() {
    const Size bytes = static_cast<Size>(work_mem) * 1024;
    return static_cast<uint32>(std::clamp<Size>(bytes / 64, 1024, 4000000));
}

ScanState* state_of(IndexScanDesc scan) {
    return static_cast<ScanState*>(scan->opaque);
}

// --- the lists

// Puts the lists of the group into place; what lies behind it stays unordered until it is wanted.
void order_group(ScanState* s) {
    const float* terms = s->terms;
    std::partial_sort(s->order + s->group_begin, s->order + s->group_end, s->order + s->meta.lists,
                      [terms](uint32 a, uint32 b) {
                          return terms[a] < terms[b] || (terms[a] == terms[b] && a < b);
                      });
}

// The pending list, whose rows are compared with the query itself, does without.
const float* query_form(Relation index, ScanState* s) {
    if (!s->form_ready) model_form(index, s->meta, s->query->x, s->form);
    s->form_ready = true;
    return s->form;
}

// What distances by codes are made of.
void read_tables(Relation index, ScanState* s) {
    if (s->table) return;
    const MetaPage& meta = s->meta;
    s->terms = scratch_array<float>(s->scratch, meta.lists);
    s->table = scratch_array<float>(s->scratch, table_floats(meta));
    const float* form = query_form(index, s);
    read_list_terms(index, meta, form, s->terms);
    read_table(index, meta, form, s->table);
    if (meta.bits == 4)
        s->nibbles = make_nibble_table(s->table, meta.m,
                                       scratch_array<uint8>(s->scratch, table_floats(meta)));
}

void rank_lists(Relation index, ScanState* s) {
    if (s->order) return;
    read_tables(index, s);
    s->order = scratch_array<uint32>(s->scratch, s->meta.lists);
    for (uint32 i = 0; i < s->meta.lists; ++i) s->order[i] = i;
    order_group(s);
}

struct GatherState {
    Relation index;
    ScanState* scan;
    CandidateSelection* selection;
    Page coming = nullptr;  // the next page, perhaps
};

// Entries from `first` on, of codes of four bits.
void gather_nibbles(const GatherState& gather, const CodeColumns& columns, float list_term,
                    const ItemPointerData* tids, uint32 first) {
    // Before there is a bound every entry is within it: a few of them make one.
    constexpr uint32 few = 64;
    NibbleHit hits[max_page_entries];
    for (uint32 end; first < columns.count; first = end) {
        const double bound = gather.selection->bound();
        end = std::isinf(bound) ? std::min(columns.count, first + few) : columns.count;
        const CodeColumns part{columns.codes + first, columns.stride, end - first,
                               columns.offsets + first,
                               end == columns.count ? columns.next : nullptr};
        const uint32 found = scan_nibbles(gather.scan->nibbles, part, list_term, bound, hits);
        for (uint32 i = 0; i < found; ++i)
            gather.selection->offer(hits[i].distance, tid_number(tids[first + hits[i].entry]));
    }
}

void gather_entries(void* state, uint32 list, Page page, const EntryLayout& layout, uint32 first) {
    const GatherState* gather = static_cast<GatherState*>(state);
    const ScanState* s = gather->scan;
    const uint32 count = page_tail(page)->count;
    const CodeColumns columns{page_codes(page), layout.capacity, count, page_offsets(page, layout),
                              gather->coming ? page_codes(gather->coming) : nullptr};
    const ItemPointerData* tids = page_tids(page, layout);
    if (s->meta.bits == 4) {
        gather_nibbles(*gather, columns, s->terms[list], tids, first);
        return;
    }
    if (gather->coming) expect_entries(gather->coming, layout);
    float distances[max_page_entries + 8];
    scan_codes(s->table, layout.m, columns, s->terms[list], distances);
    for (uint32 i = first; i < count; ++i)
        if (!(distances[i] > gather->selection->bound()))
            gather->selection->offer(distances[i], tid_number(tids[i]));
}

void gather_page(void* state, uint32 list, Page page, const EntryLayout& layout) {
    gather_entries(state, list, page, layout, 0);
}

bool was_handed_out(const ScanState* s, uint64 tid) {
    return std::binary_search(s->handed_out, s->handed_out + s->handed_out_count, tid);
}

double row_distance(const ScanState* s, const Vector* row) {
    const double distance = exact_distance(s->meta.metric, s->query, row);
    return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}

void reserve_rows(ScanState* s, Size more) {
    const Size bytes = (s->row_count + more) * sizeof(RankedRow);
    if (bytes <= s->row_room) return;
    s->rows = static_cast<RankedRow*>(
        scratch_grow(s->scratch, s->rows, s->row_count * sizeof(RankedRow), bytes));
    s->row_room = bytes;
}

Candidate* reserve_candidates(ScanState* s, Size wanted) {
    const Size bytes = CandidateSelection::room_for(wanted) * sizeof(Candidate);
    if (bytes > s->candidate_room) {
        s->candidates = static_cast<Candidate*>(scratch_grow(s->scratch, s->candidates, 0, bytes));
        s->candidate_room = bytes;
    }
    return s->candidates;
}

// Reads the rows of the candidates, in the order they lie in.
void rank_candidates(ScanState* s, Candidate* candidates, Size count) {
    reserve_rows(s, count);
    std::sort(candidates, candidates + count,
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    constexpr Size some_time = 12;
    constexpr Size later = 6;
    constexpr Size soon = 2;
    for (Size i = 0; i < std::min(count, some_time); ++i)
        expect_row(s->reader, number_tid(candidates[i].id), Expected::some_time);
    for (Size i = 0; i < count; ++i) {
        CHECK_FOR_INTERRUPTS();
        if (i + some_time < count)
            expect_row(s->reader, number_tid(candidates[i + some_time].id), Expected::some_time);
        if (i + later < count)
            expect_row(s->reader, number_tid(candidates[i + later].id), Expected::later);
        if (i + soon < count)
            expect_row(s->reader, number_tid(candidates[i + soon].id), Expected::soon);
        if (i > 0 && candidates[i].id == candidates[i - 1].id) continue;
        if (was_handed_out(s, candidates[i].id)) continue;
        const ItemPointerData tid = number_tid(candidates[i].id);
        const Vector* row = read_row(s->reader, tid);
        if (!row) continue;
        s->rows[s->row_count++] = {row_distance(s, row), tid};
        keep_row(s->reader, s->cache);
    }
    s->ranked += static_cast<int64>(count);
}

void gather_from_lists(IndexScanDesc scan, ScanState* s) {
    rank_lists(scan->indexRelation, s);
    const Size wanted = Size{s->wanted} + s->repeated;
    s->repeated = 0;
    Candidate* room = reserve_candidates(s, wanted);
    CandidateSelection selection(room, wanted, s->list_floor);
    GatherState gather{scan->indexRelation, s, &selection};
    s->report.probes = std::max(s->report.probes, s->group_end);
    walk_lists(scan->indexRelation, s->meta, s->order + s->group_begin,
               s->group_end - s->group_begin,
               {gather_page, &gather, nullptr, nullptr, &gather.coming});
    const CandidateSelection::Result result = selection.finish();
    s->report.candidates += static_cast<int64>(result.count);
    rank_candidates(s, room, result.count);

    s->list_floor = result.floor;
    if (!result.complete) return;
    const uint32 size = s->group_end - s->group_begin;
    uint32 lists = s->meta.lists;
    if (settings.max_probes > 0) lists = std::min<uint32>(lists, settings.max_probes);
    s->group_begin = s->group_end;
    s->group_end = std::max(s->group_begin, std::min(lists, s->group_begin + 2 * size));
    s->list_floor = no_floor;
    order_group(s);
}

// --- the pending list

// TIDs are copied from a page, or from several, under a lock, and their rows read after it was let
// go.
struct PendingGather {
    ScanState* scan;
    CandidateSelection* selection;
    Size count;
    Size room;
    uint64* tids;
};

void gather_pending_page(void* state, uint32, Page page, const EntryLayout& layout) {
    PendingGather* gather = static_cast<PendingGather*>(state);
    const ItemPointerData* tids = page_tids(page, layout);
    const uint32 count = page_tail(page)->count;
    if (gather->count + count > gather->room) {
        gather->room = 2 * gather->room + count;
        gather->tids =
            static_cast<uint64*>(repalloc_huge(gather->tids, gather->room * sizeof(uint64)));
    }
    for (uint32 i = 0; i < count; ++i) gather->tids[gather->count++] = tid_number(tids[i]);
}

void rank_pending_rows(void* state) {
    PendingGather* gather = static_cast<PendingGather*>(state);
    ScanState* s = gather->scan;
    std::sort(gather->tids, gather->tids + gather->count);
    for (Size i = 0; i < gather->count; ++i) {
        CHECK_FOR_INTERRUPTS();
        if (was_handed_out(s, gather->tids[i])) continue;
        const Vector* row = read_row(s->reader, number_tid(gather->tids[i]));
        if (row) gather->selection->offer(row_distance(s, row), gather->tids[i]);
    }
    gather->count = 0;
}

// What left the pending list since the last walk is in a list that this round has not read yet.
void walk_pending_again(void* state) {
    static_cast<PendingGather*>(state)->selection->start_over();
}

void remember(ScanState* s, const Candidate* rows, Size count) {
    if (s->handed_out_lost || count == 0) return;
    const Size needed = s->handed_out_count + count;
    if (s->meta.lists == 0 && needed > most_candidates() * Size{8}) {
        s->handed_out_lost = true;
        s->handed_out_count = 0;
        return;
    }
    if (needed > s->handed_out_room) {
        const Size bytes = 2 * needed * sizeof(uint64);
        s->handed_out = static_cast<uint64*>(
            s->handed_out ? repalloc_huge(s->handed_out, bytes)
                          : MemoryContextAllocHuge(CurrentMemoryContext, bytes));
        s->handed_out_room = 2 * needed;
    }
    for (Size i = 0; i < count; ++i) s->handed_out[s->handed_out_count + i] = rows[i].id;
    s->handed_out_count = needed;
    std::sort(s->handed_out, s->handed_out + needed);
}

// False: the index was trained during the walk, and entries may have moved to lists this round did
// not know of.
bool gather_from_pending(IndexScanDesc scan, ScanState* s) {
    const MetaPage& meta = s->meta;
    // Beside trained lists the pending list is taken whole: what is left of it for a later round
    // could move to a list of an earlier one. Hence also each entry once: a walk that VACUUM makes
    // us repeat must not fill the room with copies.
    const Size wanted =
        meta.lists == 0
            ? s->wanted
            : std::max<Size>(1, Size{meta.pending.pages + 1} * EntryLayout::of(0).capacity);
    Candidate* room = reserve_candidates(s, wanted);
    CandidateSelection selection(room, wanted, s->pending_floor);
    PendingGather gather{s, &selection, 0, max_page_entries, nullptr};
    gather.tids = static_cast<uint64*>(palloc(gather.room * sizeof(uint64)));
    const uint32 list = pending_list;
    walk_lists(scan->indexRelation, meta, &list, 1,
               {gather_pending_page, &gather, rank_pending_rows, walk_pending_again});
    pfree(gather.tids);
    const CandidateSelection::Result result = selection.finish();
    const bool sound = meta.lists > 0 || read_meta(scan->indexRelation).build_id == meta.build_id;
    if (sound) {
        reserve_rows(s, result.count);
        for (Size i = 0; i < result.count; ++i)
            s->rows[s->row_count++] = {room[i].distance, number_tid(room[i].id)};
        s->ranked += static_cast<int64>(result.count);
        s->pending_floor = result.floor;
        s->pending_done = result.complete;
        remember(s, room, result.count);
    }
    return sound;
}

// --- the service

uint32 bounded_probes(const Effort& effort, const MetaPage& meta) {
    const uint32 probes = std::min(effort.probes, meta.lists);
    return settings.max_probes > 0 ? std::min<uint32>(probes, settings.max_probes) : probes;
}

void prepare_completion(void* state) {
    const GatherState* gather = static_cast<GatherState*>(state);
    read_tables(gather->index, gather->scan);
}

// The first round, by the service. False, and nothing is changed, where it has no answer that the
// pages agree with.
bool gather_from_service(IndexScanDesc scan, ScanState* s) {
    Relation index = scan->indexRelation;
    const Effort effort = choose_effort(s->meta, s->limit, service_costs());
    const uint32 probes = bounded_probes(effort, s->meta);
    const uint32 wanted = std::min(effort.candidates + s->passed_over, most_candidates());
    if (wanted > service_most_k || probes > service_most_probes) {
        s->report.reason = "too many candidates or probes for the service";
        return false;
    }
    ServiceAnswer answer;
    if (!ask_for_candidates(index, s->meta, query_form(index, s), wanted, probes, &answer)) {
        s->report.reason = "the service had no answer";
        return false;
    }
    Candidate* room = reserve_candidates(s, Size{wanted} + most_appended);
    CandidateSelection selection(room, wanted, no_floor);
    GatherState gather{index, s, &selection};
    const Completion completion =
        complete_answer(index, s->meta, answer, {prepare_completion, gather_entries, &gather});
    if (!completion.current) {
        s->report.reason = completion.because;
        return false;
    }
    for (uint32 i = 0; i < answer.found_count; ++i)
        selection.offer(answer.found[i].distance, answer.found[i].id);
    Size count = selection.finish().count;
    for (uint32 i = 0; i < completion.appended_count; ++i)
        room[count++] = {0, completion.appended[i]};
    s->report.by_service = true;
    s->report.probes = probes;
    s->report.candidates += static_cast<int64>(count);
    s->report.lists_read = completion.read_lists;
    s->report.lists_grown = completion.grown_lists;
    rank_candidates(s, room, count);
    // In the order of their TIDs by now.
    remember(s, room, count);

    s->group_end = probes;
    s->wanted = wanted;
    s->repeated = static_cast<uint32>(count);
    return true;
}

// --- rounds

void begin_model(IndexScanDesc scan, ScanState* s, const MetaPage& meta) {
    if (s->handed_out_lost)
        ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
                        errmsg("index \"%s\" was trained while a long scan of it was under way",
                               RelationGetRelationName(scan->indexRelation)),
                        errhint("Run the query again, or raise work_mem.")));
    if (s->query->dims != static_cast<int>(meta.dims))
        ereport(ERROR,
                (errcode(ERRCODE_DATA_EXCEPTION),
                 errmsg("different vector dimensions %d and %u", s->query->dims, meta.dims)));
    s->meta = meta;
    s->form_ready = false;
    s->pending_floor = no_floor;
    s->list_floor = no_floor;
    s->pending_done = false;

    s->limit = s->wanted_rows > 0 ? s->wanted_rows : wanted_rows(scan);
    const Effort effort = choose_effort(meta, s->limit);
    s->wanted = std::min(effort.candidates + s->passed_over, most_candidates());
    s->group_begin = 0;
    s->group_end = bounded_probes(effort, meta);
    s->report.probes = s->group_end;
    s->repeated = 0;
    s->terms = s->table = nullptr;
    s->order = nullptr;
}

bool exhausted(const ScanState* s) {
    return s->pending_done && s->group_begin >= s->group_end;
}

void next_round(IndexScanDesc scan, ScanState* s) {
    Relation index = scan->indexRelation;
    // The reader outlives rescans, as the state does.
    const MemoryContext before = MemoryContextSwitchTo(GetMemoryChunkContext(s));
    if (!s->reader) s->reader = open_row_reader(scan->heapRelation, index, scan->xs_snapshot);
    MemoryContextSwitchTo(s->context);
    clear_vector_cache(s->cache);
    bool sound;
    do {
        const MetaPage meta = read_meta(index);
        if (!s->started || meta.build_id != s->meta.build_id)
            begin_model(scan, s, meta);
        else
            s->meta = meta;
        s->started = true;
        s->row_count = s->row_next = 0;
        sound = s->pending_done || gather_from_pending(scan, s);
    } while (!sound);
    if (s->group_begin < s->group_end) {
        const bool ask = s->report.rounds == 0 && service_usable(index, &s->report.reason);
        s->report.fell_back = ask && !gather_from_service(scan, s);
        if (!s->report.by_service || s->report.rounds > 0) gather_from_lists(scan, s);
    }
    rest_row_reader(s->reader);
    std::sort(s->rows, s->rows + s->row_count, [](const RankedRow& a, const RankedRow& b) {
        return a.distance < b.distance ||
               (a.distance == b.distance && tid_number(a.tid) < tid_number(b.tid));
    });
    s->wanted = std::min(2 * s->wanted, most_candidates());
    ++s->report.rounds;
    s->report.ranked_rows = s->ranked;
    report_round(index, &s->report);
    s->finished = exhausted(s) || settings.iterative_scan == static_cast<int>(IterativeScan::off) ||
                  (settings.max_scan_tuples > 0 && s->ranked >= settings.max_scan_tuples);
    MemoryContextSwitchTo(before);
}

Vector* query_of(IndexScanDesc scan) {
    const ScanKey key = &scan->orderByData[0];
    if (!(key->sk_flags & SK_ISNULL)) {
        // A copy: the key's memory is the executor's.
        const Vector* given = datum_get_vector(key->sk_argument);
        Vector* query = new_vector(given->dims);
        memcpy(query->x, given->x, given->dims * sizeof(float));
        return query;
    }
    // Every distance from null is null: all rows, in any order.
    const int dims = static_cast<int>(read_meta(scan->indexRelation).dims);
    Vector* query = new_vector(dims);
    memset(query->x, 0, static_cast<Size>(dims) * sizeof(float));
    return query;
}

void start(IndexScanDesc scan, ScanState* s) {
    // The planner is told so by infinite costs.
    if (scan->numberOfOrderBys != 1)
        elog(ERROR, "cannot scan ivfpq index \"%s\" by %d distances",
             RelationGetRelationName(scan->indexRelation), scan->numberOfOrderBys);
    if (!IsMVCCSnapshot(scan->xs_snapshot))
        elog(ERROR, "non-MVCC snapshots are not supported with ivfpq");
    compat_count_search(scan);
    const MemoryContext before = MemoryContextSwitchTo(s->context);
    s->query = query_of(scan);
    s->scratch = open_scratch(s->context);
    s->cache = open_vector_cache(s->context, s->scratch);
    s->form = scratch_array<float>(s->scratch, static_cast<Size>(s->query->dims));
    s->last_distance = -std::numeric_limits<double>::infinity();
    MemoryContextSwitchTo(before);
}

}  // namespace

IndexScanDesc ivfpq_begin_scan(Relation index, int keys, int order_bys) {
    IndexScanDesc scan = RelationGetIndexScan(index, keys, order_bys);
    ScanState* s = static_cast<ScanState*>(palloc0(sizeof(ScanState)));
    s->context = AllocSetContextCreate(CurrentMemoryContext, "ivfpq scan", ALLOCSET_DEFAULT_SIZES);
    scan->opaque = s;
    return scan;
}

void want_rows(IndexScanDesc scan, uint32 rows, uint32 passed_over) {
    state_of(scan)->wanted_rows = rows;
    state_of(scan)->passed_over = passed_over;
}

void ivfpq_rescan(IndexScanDesc scan, ScanKey keys, int, ScanKey order_bys, int) {
    ScanState* s = state_of(scan);
    const ScanState kept = *s;
    MemoryContextReset(s->context);
    *s = {};
    s->wanted_rows = kept.wanted_rows;
    s->passed_over = kept.passed_over;
    s->context = kept.context;
    s->reader = kept.reader;
    if (keys && scan->numberOfKeys > 0)
        memmove(scan->keyData, keys, static_cast<Size>(scan->numberOfKeys) * sizeof(ScanKeyData));
    if (order_bys && scan->numberOfOrderBys > 0)
        memmove(scan->orderByData, order_bys,
                static_cast<Size>(scan->numberOfOrderBys) * sizeof(ScanKeyData));
}

bool ivfpq_get_tuple(IndexScanDesc scan, ScanDirection direction) {
    Assert(ScanDirectionIsForward(direction));
    (void)direction;
    ScanState* s = state_of(scan);
    if (!s->query) start(scan, s);
    while (true) {
        if (s->row_next >= s->row_count) {
            if (s->finished) return false;
            next_round(scan, s);
            continue;
        }
        const RankedRow& row = s->rows[s->row_next++];
        if (settings.iterative_scan == static_cast<int>(IterativeScan::strict_order)) {
            if (row.distance < s->last_distance) continue;
            s->last_distance = row.distance;
        }
        scan->xs_heaptid = row.tid;
        if (s->reader) ease_fetch(s->reader, scan->xs_heapfetch, row.tid);
        scan->xs_recheck = false;
        scan->xs_recheckorderby = false;
        return true;
    }
}

void ivfpq_end_scan(IndexScanDesc scan) {
    ScanState* s = state_of(scan);
    if (s->reader) close_row_reader(s->reader);
    MemoryContextDelete(s->context);
    pfree(s);
}

}  // namespace pgwarp
