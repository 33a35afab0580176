// A changed row is taken out of all lists, found by the index on their neighbors. Lists that have
// lost a neighbor, and that of the row if it is still there, are made anew by a search for the rows
// near to theirs. The row then enters lists of other rows: of those near to it, where it is nearer
// than their last neighbor. Distances are symmetric, so the search for its own neighbors has told
// them.

#include <algorithm>

#include "extension/graph/auto_lists.h"
#include "extension/graph/auto_repair.h"
#include "extension/graph/table.h"

extern "C" {
#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

// How many rows near to a changed one may have it as a neighbor: bench/notes/graphs.md has recall.
uint32 places_of_changed(uint32 k) {
    return 4 * k + 32;
}

// Some of the changed rows, and all lists that they are in.
struct Repair {
    const KeptGraph* kept;
    const int64* changed;  // (count), sorted
    Size count;
    // Changed rows that come later: their lists are not made yet.
    const int64* later;
    Size later_count;
    KeptLists own;  // of changed rows and of those that had one as a neighbor
    bool* present;  // (own.count): whether the table has the row
};

// A row that may enter a list of another.
struct Candidate {
    int64 source;
    NearRow row;
};

struct Candidates {
    Candidate* all;
    Size count;
};

void begin_lists(Repair* repair) {
    Size affected;
    const int64* sources = find_sources(*repair->kept, repair->changed, repair->count, &affected);
    int64* all = static_cast<int64*>(
        palloc_extended((affected + repair->count) * sizeof(int64), MCXT_ALLOC_HUGE));
    std::copy_n(repair->changed, repair->count, all);
    std::copy_n(sources, affected, all + repair->count);
    repair->own = new_kept_lists(all, sort_keys(all, affected + repair->count), repair->kept->k);
    repair->present = static_cast<bool*>(
        palloc_extended(repair->own.count * sizeof(bool), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    read_kept_lists(*repair->kept, &repair->own, repair->changed, repair->count);
}

// Searches for rows near to these, and enters what is found into lists of both. Null candidates:
// only into own lists.
void search_for(Repair* repair, const KeptRows& rows, uint32 most, Candidates* candidates) {
    const NearRows near = find_near_rows(*repair->kept, rows, most);
    for (Size i = 0; i < rows.count; ++i) {
        CHECK_FOR_INTERRUPTS();
        const Size list = find_list(repair->own, rows.keys[i]);
        if (list == repair->own.count) continue;
        repair->present[list] = true;
        for (uint32 j = 0; j < near.counts[i]; ++j) {
            const NearRow& found = near.rows[i * most + j];
            if (found.key == rows.keys[i]) continue;
            const NearRow row = {rows.keys[i], found.distance};
            enter_list(&repair->own, list, found);
            const Size other = find_list(repair->own, found.key);
            if (other != repair->own.count)
                enter_list(&repair->own, other, row);
            else if (candidates && !has_key(repair->later, repair->later_count, found.key))
                candidates->all[candidates->count++] = {found.key, row};
        }
    }
    pfree(near.rows);
    pfree(near.counts);
}

Candidates search_for_changed(Repair* repair) {
    const KeptRows rows = read_kept_rows(*repair->kept, repair->changed, repair->count);
    const uint32 most = places_of_changed(repair->kept->k);
    Candidates candidates = {
        static_cast<Candidate*>(palloc_extended(
            std::max<Size>(rows.count, 1) * most * sizeof(Candidate), MCXT_ALLOC_HUGE)),
        0};
    search_for(repair, rows, most, &candidates);
    return candidates;
}

// A row finds itself, too.
void search_for_affected(Repair* repair) {
    int64* keys =
        static_cast<int64*>(palloc_extended(repair->own.count * sizeof(int64), MCXT_ALLOC_HUGE));
    Size count = 0;
    for (Size i = 0; i < repair->own.count; ++i)
        if (!has_key(repair->changed, repair->count, repair->own.sources[i]))
            keys[count++] = repair->own.sources[i];
    const uint32 most = repair->kept->k + 1;
    const Size row_bytes = most * 4 * sizeof(NearRow) + 4096;
    const Size at_once = std::max<Size>(graph_memory() / 2 / row_bytes, 1);
    for (Size first = 0; first < count; first += at_once) {
        const KeptRows rows =
            read_kept_rows(*repair->kept, keys + first, std::min(at_once, count - first));
        search_for(repair, rows, most, nullptr);
        if (rows.rows) pfree(rows.rows);
        pfree(rows.keys);
    }
    pfree(keys);
}

// All are written: a list that is empty goes.
void end_lists(Repair* repair) {
    for (Size i = 0; i < repair->own.count; ++i) {
        if (!repair->present[i]) repair->own.lengths[i] = 0;
        repair->own.changed[i] = true;
    }
}

// The sources of candidates, sorted, none twice.
int64* sources_of(const Candidates& candidates, Size* count) {
    int64* sources = static_cast<int64*>(
        palloc_extended(std::max<Size>(candidates.count, 1) * sizeof(int64), MCXT_ALLOC_HUGE));
    for (Size i = 0; i < candidates.count; ++i) sources[i] = candidates.all[i].source;
    *count = sort_keys(sources, candidates.count);
    return sources;
}

// Drops those that are no nearer than the last neighbor of their list. They are most of them, and
// of their lists no other edge is read.
void drop_far(const KeptGraph& kept, Candidates* candidates) {
    Size count;
    int64* sources = sources_of(*candidates, &count);
    float* radii = read_radii(kept, sources, count);
    const auto is_far = [&](const Candidate& candidate) {
        const auto place = std::lower_bound(sources, sources + count, candidate.source) - sources;
        return !(candidate.row.distance < radii[place]);
    };
    Candidate* end = std::remove_if(candidates->all, candidates->all + candidates->count, is_far);
    candidates->count = static_cast<Size>(end - candidates->all);
    pfree(radii);
    pfree(sources);
}

KeptLists enter_candidates(const KeptGraph& kept, Candidates candidates) {
    drop_far(kept, &candidates);
    Size count;
    const int64* sources = sources_of(candidates, &count);
    KeptLists others = new_kept_lists(sources, count, kept.k);
    read_kept_lists(kept, &others, nullptr, 0);
    for (Size i = 0; i < candidates.count; ++i)
        enter_list(&others, find_list(others, candidates.all[i].source), candidates.all[i].row);
    return others;
}

void repair_some(Repair* repair) {
    begin_lists(repair);
    const Candidates candidates = search_for_changed(repair);
    search_for_affected(repair);
    end_lists(repair);
    const KeptLists others = enter_candidates(*repair->kept, candidates);
    KeptWriter* writer = open_kept_writer(*repair->kept);
    write_kept_lists(writer, repair->own);
    write_kept_lists(writer, others);
    close_kept_writer(writer);
}

// Changed rows whose candidates, with their lists, fit into a part of the memory.
Size changed_at_once(uint32 k) {
    const Size candidate_bytes = sizeof(Candidate) + 4 * sizeof(NearRow) + k * sizeof(NearRow);
    const Size row_bytes = places_of_changed(k) * candidate_bytes;
    return std::clamp<Size>(graph_memory() / 2 / row_bytes, 1, 1000);
}

}  // namespace

void repair_graph(const KeptGraph& kept, const int64* changed, Size count) {
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "repair of a graph", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    const Size at_once = changed_at_once(kept.k);
    for (Size first = 0; first < count; first += at_once) {
        const Size end = std::min(count, first + at_once);
        if (first > 0) {
            // Sees what the lists before have become.
            CommandCounterIncrement();
            PopActiveSnapshot();
            PushActiveSnapshot(GetLatestSnapshot());
        }
        Repair repair = {&kept, changed + first, end - first, changed + end, count - end,
                         {},    nullptr};
        repair_some(&repair);
        MemoryContextReset(context);
    }
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
}

}  // namespace pgwarp
