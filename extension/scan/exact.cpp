// Rounds of an exact search. The first round reads the rows of all entries in the order of their
// TIDs, and keeps the nearest: as many as LIMIT asks for, or as memory holds. If the executor wants
// more, a second round reads the rows again and sorts all the rest, which may spill to disk. So
// rows come in exact order from the first to the last.

#include <algorithm>

#include "extension/index/lists.h"
#include "extension/index/page.h"
#include "extension/index/tid.h"
#include "extension/scan/exact.h"
#include "extension/scan/state.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

// --- entries

struct EntryCopy {
    TidSet* tids;
    std::span<const Condition> conditions;
    bool checks_rows;  // entries without attributes are among them
    uint32 count;
    uint64 page_tids[max_page_entries];  // of one page
};

void copy_page(void* state, uint32, Page page, const EntryLayout& layout) {
    auto* copy = static_cast<EntryCopy*>(state);
    const ItemPointerData* tids = page_tids(page, layout);
    const uint32 count = page_tail(page)->count;
    uint64 passing[passing_words(max_page_entries)];
    const bool all = layout.m == 0 || copy->conditions.empty();
    if (!all) check_conditions(attribute_columns(page, layout), copy->conditions, passing);
    copy->checks_rows |= layout.m == 0 && count > 0;
    copy->count = 0;
    for (uint32 i = 0; i < count; ++i)
        if (all || (passing[i / 64] >> i % 64 & 1))
            copy->page_tids[copy->count++] = tid_number(tids[i]);
}

// Runs without the page's lock, because put_tid() may write to a file.
void keep_page(void* state) {
    const auto* copy = static_cast<EntryCopy*>(state);
    for (uint32 i = 0; i < copy->count; ++i) put_tid(copy->tids, copy->page_tids[i]);
}

void walk(Relation index, const MetaPage& meta, Snapshot snapshot, EntryCopy* copy,
          const uint32* lists, uint32 count) {
    walk_lists(index, meta, lists, count, {copy_page, copy, keep_page});
    check_snapshot(index, meta, lists, count, snapshot);
}

// Adds the entries of the pending list, then those of the lists: training moves entries from one to
// the other, so that one that moves meanwhile is met twice, never missed. False: VACUUM trained the
// index meanwhile, and `meta` lacks its lists.
bool add_entries(Relation index, const MetaPage& meta, Snapshot snapshot, EntryCopy* copy) {
    const uint32 pending = pending_list;
    const ListPlace& place = meta.pending;
    // A list that never had an entry.
    const bool unused = place.generation == 0 && !BlockNumberIsValid(place.head);
    if (!unused) walk(index, meta, snapshot, copy, &pending, 1);
    if (meta.lists == 0) return read_meta(index).build_id == meta.build_id;
    const uint32 count = directory_lists(meta);
    auto* lists = static_cast<uint32*>(palloc(count * sizeof(uint32)));
    for (uint32 i = 0; i < count; ++i) lists[i] = i;
    walk(index, meta, snapshot, copy, lists, count);
    pfree(lists);
    return true;
}

// --- rounds

// As many rows as the first round keeps; 0: all, because LIMIT asks for more than memory holds.
Size first_rows(const ScanState* s) {
    // The executor may drop some rows: more are kept, so that no second round replaces them.
    constexpr Size least = 1000;
    const Size most = most_candidates();
    if (s->goal.least_rows == 0) return most;
    const Size wanted = s->goal.least_rows + s->asked.passed_over;
    return wanted > most ? 0 : std::min(most, std::max(wanted, least));
}

void offer_row(void* state, double distance, uint64 tid) {
    static_cast<CandidateSelection*>(state)->offer(distance, tid);
}

Size rank_all(ScanState* s, const RowSink& sink) {
    return rank_tids(s, s->exact.tids, s->exact.checks_rows && s->conditions.count > 0, sink);
}

// Adds the nearest rows to the round. True: these are all.
bool add_nearest(ScanState* s, Size wanted) {
    Candidate* room = reserve_candidates(s, wanted);
    CandidateSelection selection(room, wanted, no_floor);
    s->report.candidates = static_cast<int64>(rank_all(s, {offer_row, &selection}));
    const CandidateSelection::Result nearest = selection.finish();
    for (Size i = 0; i < nearest.count; ++i) add_row(s, room[i].distance, room[i].id);
    s->exact.floor = nearest.floor;
    return nearest.complete;
}

void add_beyond_floor(void* state, double distance, uint64 tid) {
    auto* s = static_cast<ScanState*>(state);
    const Candidate row{distance, tid};
    if (row < s->exact.floor || row == s->exact.floor) return;
    add_row(s, distance, tid);
}

}  // namespace

bool searches_exactly(const MetaPage& meta) {
    const bool all_lists =
        settings.max_probes == 0 || static_cast<uint32>(settings.max_probes) >= meta.lists;
    return settings.target_recall >= 1 && settings.probes == 0 && settings.candidates == 0 &&
           settings.max_scan_tuples == 0 && all_lists;
}

IndexEntries read_entries(Relation index, Snapshot snapshot, std::span<const Condition> conditions,
                          Size bytes) {
    auto* copy = static_cast<EntryCopy*>(palloc0(sizeof(EntryCopy)));
    copy->conditions = conditions;
    copy->tids = open_tid_set(bytes);
    while (!add_entries(index, read_meta(index), snapshot, copy)) continue;
    sort_tid_set(copy->tids);
    const IndexEntries entries{copy->tids, copy->checks_rows};
    pfree(copy);
    return entries;
}

void exact_round(IndexScanDesc scan, ScanState* s) {
    Relation index = scan->indexRelation;
    clear_vector_cache(s->cache);
    const bool first = s->report.rounds == 0;
    if (first) {
        const IndexEntries entries =
            read_entries(index, scan->xs_snapshot, s->conditions.all(), scan_memory() / 8);
        s->exact.tids = entries.tids;
        s->exact.checks_rows = entries.check_rows;
        s->exact.floor = no_floor;
        s->report.reason = "an exact search ranks all rows";
        s->report.probes = s->meta.lists;
        s->report.expected_recall = 1;
    }
    const Size wanted = first ? first_rows(s) : 0;
    const bool complete = wanted > 0 && add_nearest(s, wanted);
    if (wanted == 0) s->report.candidates = static_cast<int64>(rank_all(s, {add_beyond_floor, s}));
    s->progress.finished = complete || wanted == 0;
    ++s->report.rounds;
    report_round(index, &s->report);
}

}  // namespace pgwarp
