// Rounds of an exact search. The first round reads the rows of all entries in the order of their
// TIDs, and keeps the nearest: as many as LIMIT asks for, or as memory holds. If the executor wants
// more, a second round reads the rows again and sorts all the rest, which may spill to disk. So
// rows come in exact order from the first to the last.

#include <algorithm>

#include "extension/scan/entries.h"
#include "extension/scan/exact.h"
#include "extension/scan/state.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

// --- rounds

// The TIDs that the search ranks.
void read_tids(IndexScanDesc scan, ScanState* s) {
    const Size bytes = scan_memory() / 8;
    if (s->conditions.ranks_rows) {
        s->exact.tids = tids_of(*s->conditions.rows, scan->heapRelation, bytes);
        s->exact.checks_rows = true;
        s->report.reason = "all rows of a bitmap are ranked";
        return;
    }
    const IndexEntries entries = read_entries(scan->indexRelation, scan->xs_snapshot,
                                              s->conditions.all(), bytes, s->conditions.rows);
    s->exact.tids = entries.tids;
    s->exact.checks_rows = entries.check_rows;
    s->report.reason = "an exact search ranks all rows";
    s->report.probes = s->meta.lists;
}

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

void exact_round(IndexScanDesc scan, ScanState* s) {
    Relation index = scan->indexRelation;
    clear_vector_cache(s->cache);
    const bool first = s->report.rounds == 0;
    if (first) {
        read_tids(scan, s);
        s->exact.floor = no_floor;
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
