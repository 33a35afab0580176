// Orders candidates by their refinements, and visits the table only for rows that may be next.
//
// A refinement gives the distance of a row, and the most that it may be off. So no row of a
// candidate is nearer than its least distance. Candidates are visited in the order of those, until
// the k-th exact distance is not above the least distance of the next candidate: then the k nearest
// rows of all candidates are known, as if all had been visited. Rows that were visited, but that a
// waiting candidate may precede, wait as well. If more rows are fetched, the scan goes on there.
//
// Refinements are read after the walk of the lists, without the locks of their list pages. VACUUM
// may have moved entries meanwhile, or freed pages. A refinement names its row: where that is not
// the candidate's, the candidate is visited. A row that this scan's snapshot sees keeps its TID, so
// a refinement that names the row is its own.
//
// A device of the service scores the candidates that it has itself, by refinements that came with
// their list and are of the version that its answer names. It names those that may be among the
// nearest rows, and how near the others may be at best: rows beyond that wait until the next round
// has found the others.

#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/index/buffers.h"
#include "extension/index/page.h"
#include "extension/index/tid.h"
#include "extension/scan/merged_order.h"
#include "extension/scan/places.h"
#include "extension/scan/state.h"
#include "extension/scan/tables.h"
#include "extension/scan/visit.h"
#include "extension/settings.h"
#include "extension/util/prefetch.h"

extern "C" {
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

constexpr double not_known = -std::numeric_limits<double>::infinity();
constexpr double nowhere = std::numeric_limits<double>::infinity();

template <typename Item>
void grow(Item** items, Size* room, Size wanted) {
    if (wanted <= *room) return;
    *room = std::max(wanted, 2 * *room);
    const Size bytes = *room * sizeof(Item);
    *items = static_cast<Item*>(*items ? repalloc_huge(*items, bytes)
                                       : MemoryContextAllocHuge(CurrentMemoryContext, bytes));
}

// Distances by code in units of exact_distance(): see bound.h.
double exact_units(const ScanState* s, double distance) {
    return normalizes(s->meta.metric) ? distance / 2 : distance;
}

// Prefetches the record of a candidate that is scored soon.
void prefetch_record(Relation index, const ScanState* s, const RefinementLayout& layout,
                     uint32 place) {
    if (place == 0) return;
    Page page = prefetch_list_page(index, s->refined.blocks[NotedPlace::block(place)]);
    if (!page) return;
    prefetch_lines(page_record(page, layout, NotedPlace::record(place)), layout.stride);
}

// The refinement page that was read last, share-locked.
struct OpenPage {
    Relation index;
    BlockNumber block = InvalidBlockNumber;
    Buffer buffer = InvalidBuffer;

    // Null: the block is no refinement page any more.
    Page go_to(BlockNumber wanted) {
        if (wanted != block) {
            close();
            block = wanted;
            find_refinement_page(index, block, &buffer);
        }
        return BufferIsValid(buffer) ? BufferGetPage(buffer) : nullptr;
    }
    void close() {
        if (BufferIsValid(buffer)) UnlockReleaseBuffer(buffer);
        buffer = InvalidBuffer;
        block = InvalidBlockNumber;
    }
};

// The candidate with the least distance that its row may have, by its refinement; not_known if it
// has none, or it cannot be told.
WaitingCandidate scored(const ScanState* s, const RefinementLayout& layout, OpenPage* open,
                        const Candidate& candidate) {
    WaitingCandidate waiting{not_known, candidate.id, false, 0};
    if (candidate.place == 0) return waiting;
    Page page = open->go_to(s->refined.blocks[NotedPlace::block(candidate.place)]);
    if (!page) return waiting;
    const uint32 list = page_tail(page)->list;
    const RefinementRecord* record = page_record(page, layout, NotedPlace::record(candidate.place));
    if (tid_number(record->tid) != candidate.id || list >= s->meta.lists) return waiting;
    const RefinedDistance refined = refined_distance(s->refined.query, s->lists.terms[list],
                                                     record->head, record_codes(record));
    waiting.least = exact_units(s, double{refined.distance} - refined.error);
    waiting.beyond = static_cast<float>(exact_units(s, refined.error));
    return waiting;
}

void prepare_query(Relation index, ScanState* s) {
    if (s->refined.query.dims > 0) return;
    auto* values = static_cast<int16*>(palloc(s->meta.code_dims * sizeof(int16)));
    s->refined.query =
        make_refinement_query(s->meta.metric, query_form(index, s), s->meta.code_dims, values);
}

void wait_for_visit(ScanState* s, const WaitingCandidate& candidate) {
    RefinedCandidates& refined = s->refined;
    grow(&refined.waiting, &refined.room, refined.count + 1);
    refined.waiting[refined.count++] = candidate;
}

// Adds the rows of waiting[begin .. end) to the round.
void visit(ScanState* s, Size begin, Size end) {
    expect_rows(s, end - begin);
    auto* unvisited = static_cast<Candidate*>(palloc((end - begin) * sizeof(Candidate)));
    Size count = 0;
    for (Size i = begin; i < end; ++i) {
        const WaitingCandidate& candidate = s->refined.waiting[i];
        if (candidate.visited) {
            add_row(s, candidate.least, candidate.tid);
            note_visit(s, candidate.least, true);
        } else {
            unvisited[count++] = {candidate.least, candidate.tid};
        }
    }
    std::sort(unvisited, unvisited + count,
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    visit_rows(s, unvisited, count, [s](const Candidate& candidate, double distance) {
        add_row(s, distance, candidate.id);
        keep_row(s->reader, s->cache);
        return true;
    });
    pfree(unvisited);
}

// Rows that a waiting candidate may precede wait, too.
void keep_back(ScanState* s, double limit) {
    Size kept = 0;
    for (Size i = 0; i < s->round.count; ++i) {
        const RankedRow row = s->round.rows[i];
        if (row.distance < limit)
            s->round.rows[kept++] = row;
        else
            wait_for_visit(s, {row.distance, tid_number(row.tid), true, 0});
    }
    s->round.added -= s->round.count - kept;
    s->round.count = kept;
}

}  // namespace

Size note_refinements(ScanState* s, Page page, const EntryLayout& layout) {
    RefinedCandidates& refined = s->refined;
    const Size pages = layout.refinement.pages(page_tail(page)->count);
    const Size most =
        std::min(NotedPlace::most_blocks, std::max<Size>(scan_memory() / 32, 1 << 14));
    if (refined.block_count + pages > most) return NotedPlace::most_blocks;
    const Size first = refined.block_count;
    grow(&refined.blocks, &refined.block_room, first + pages);
    std::copy_n(page_refinements(page, layout), pages, refined.blocks + first);
    refined.block_count += pages;
    return first;
}

bool refines(const ScanState* s) {
    return s->meta.refinement != RefinementKind::none && settings.refine && !s->bound.given &&
           !row_filter(s->reader).passes;
}

void decide_to_refine(ScanState* s) {
    if (!s->refined.decided) s->refined.used = refines(s);
    s->refined.decided = true;
}

bool refine_candidates(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count) {
    RefinedCandidates& refined = s->refined;
    if (s->round.spilled || refined.count + s->round.count + count > most_candidates())
        return false;
    Relation index = scan->indexRelation;
    prepare_query(index, s);
    count = new_candidates(scan, s, candidates, count);
    std::sort(candidates, candidates + count,
              [](const Candidate& a, const Candidate& b) { return a.place < b.place; });
    grow(&refined.waiting, &refined.room, refined.count + count);
    const RefinementLayout layout = refinement_layout(s->meta);
    constexpr Size ahead = 4;
    for (Size i = 0; i < std::min(count, ahead); ++i)
        prefetch_record(index, s, layout, candidates[i].place);
    OpenPage open{index};
    for (Size i = 0; i < count; ++i) {
        if (i + ahead < count) prefetch_record(index, s, layout, candidates[i + ahead].place);
        if (i % 64 == 63) {
            open.close();
            CHECK_FOR_INTERRUPTS();
        }
        wait_for_visit(s, scored(s, layout, &open, candidates[i]));
    }
    open.close();
    return true;
}

void wait_for_visits(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count,
                     double left_out) {
    RefinedCandidates& refined = s->refined;
    count = new_candidates(scan, s, candidates, count);
    grow(&refined.waiting, &refined.room, refined.count + count);
    // A device tells the least distance only.
    constexpr float unknown = std::numeric_limits<float>::infinity();
    for (Size i = 0; i < count; ++i)
        wait_for_visit(s,
                       {exact_units(s, candidates[i].distance), candidates[i].id, false, unknown});
    refined.left_out = exact_units(s, left_out);
}

namespace {

// Sorts waiting candidates by their least distances. Returns how many of them certainly precede
// those that the device left out.
Size order_waiting(ScanState* s) {
    RefinedCandidates& refined = s->refined;
    std::sort(refined.waiting, refined.waiting + refined.count,
              [](const WaitingCandidate& a, const WaitingCandidate& b) {
                  return a.least < b.least || (a.least == b.least && a.tid < b.tid);
              });
    Size known = refined.count;
    if (!s->round.spilled)
        while (known > 0 && refined.waiting[known - 1].least >= refined.left_out) --known;
    return known;
}

// Removes the first `visited` candidates. Rows that another candidate may precede wait, too. The
// next visits are `step` at a time.
void end_visits(ScanState* s, Size visited, Size step) {
    RefinedCandidates& refined = s->refined;
    std::copy(refined.waiting + visited, refined.waiting + refined.count, refined.waiting);
    refined.count -= visited;
    const double limit =
        refined.count > 0 ? std::min(refined.left_out, refined.waiting[0].least) : refined.left_out;
    if (!s->round.spilled && limit < nowhere) keep_back(s, limit);
    refined.step = std::max<Size>(step, 1);
}

// The end of the next visits; that of the ones before: the k nearest rows are known.
Size next_visits(const ScanSearch& search, const MergedOrder& order, Size k) {
    Size rows = 0;
    for (int i = 0; i < search.count; ++i) {
        // The round has spilled: it wants all rows.
        if (search.parts[i]->round.spilled) return order.count;
        rows += search.parts[i]->round.count;
    }
    if (rows < k) return std::min(order.count, order.at + (k - rows));
    // At most k at a time: the k-th row so far may come from the pending list, and be far.
    const Size most = std::min(order.count, order.at + std::max<Size>(k, 1));
    const double kth = k > 0 ? kth_distance(search, k, false) : not_known;
    Size end = order.at;
    while (end < most && order.items[end].distance <= kth) ++end;
    return end;
}

}  // namespace

void visit_waiting(const ScanSearch& search, Size k) {
    ScanState* const* parts = search.parts;
    if (std::all_of(parts, parts + search.count, [](const ScanState* s) {
            return s->refined.count == 0 && s->refined.left_out == nowhere;
        }))
        return;
    MergedOrder order = merge_parts(
        search.count, [&](int i) { return order_waiting(parts[i]); },
        [&](int i, Size c) { return parts[i]->refined.waiting[c].least; });
    // Makes room once, as growing memory drops cached vectors. Few more rows than are wanted have
    // to be visited.
    for (int i = 0; i < search.count; ++i)
        if (!parts[i]->round.spilled)
            in_memory_of(parts[i],
                         [&] { expect_rows(parts[i], std::min(order.counts[i], 2 * k + 64)); });
    for (Size end; (end = next_visits(search, order, k)) > order.at;) {
        order.take_until(end);
        if (search.count > 1)
            prefetch_rows([&](auto prefetch) {
                for (int i = 0; i < search.count; ++i)
                    for (Size c = order.begins[i]; c < order.ends[i]; ++c) {
                        const WaitingCandidate& candidate = parts[i]->refined.waiting[c];
                        if (!candidate.visited) prefetch(parts[i], candidate.tid);
                    }
            });
        for (int i = 0; i < search.count; ++i)
            if (order.taken_of(i) > 0)
                in_memory_of(parts[i], [&] { visit(parts[i], order.begins[i], order.ends[i]); });
    }
    // A Merge Append takes the rows of a part one by one.
    for (int i = 0; i < search.count; ++i)
        in_memory_of(parts[i],
                     [&] { end_visits(parts[i], order.ends[i], search.count > 1 ? 1 : k); });
    free_order(order);
}

void hold_back_rows(ScanState* s, Size count) {
    if (s->round.count <= count) return;
    const double limit = s->round.rows[count].distance;
    for (Size i = count; i < s->round.count; ++i)
        wait_for_visit(s, {s->round.rows[i].distance, tid_number(s->round.rows[i].tid), true, 0});
    s->round.added -= s->round.count - count;
    s->round.count = count;
    s->refined.left_out = std::min(s->refined.left_out, limit);
}

void find_left_out(ScanState* s) {
    s->refined.left_out = nowhere;
}

bool more_waiting_rows(IndexScanDesc scan, ScanState* s) {
    const RefinedCandidates& refined = s->refined;
    if (s->progress.finished) find_left_out(s);
    CHECK_FOR_INTERRUPTS();
    // Candidates that are beyond what was left out, or as far, wait for the next round.
    if (std::none_of(
            refined.waiting, refined.waiting + refined.count,
            [&](const WaitingCandidate& candidate) { return candidate.least < refined.left_out; }))
        return false;
    clear_vector_cache(s->cache);
    s->round.count = s->round.next = s->round.added = 0;
    // A plan that fetches more rows than expected may fetch many.
    visit_waiting({&s, 1}, 2 * s->refined.step);
    if (!s->asked.repeated) report_visits(scan->indexRelation, &s->report);
    if (s->reader) rest_row_reader(s->reader);
    sort_rows(s);
    return true;
}

}  // namespace pgwarp
