// Recall against effort. A neighbor is found with P probes and C candidates if its list is among
// the P nearest to the query, and fewer than C entries of those lists have a smaller distance by
// their codes. One walk over the lists of a query, nearest first, measures both for every P and C.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/list_scan.h"
#include "kernels/nibble_scan.h"
#include "extension/build/curve.h"
#include "extension/index/lists.h"
#include "extension/index/model.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

// Fills a grid of probes from 1 to all lists; each step is about sqrt(2) times the one before.
uint32 fill_probe_grid(uint32 lists, uint32* probes) {
    uint32 steps = 0;
    double next = 1;
    // A larger ratio where twenty steps of sqrt(2) would not reach the end.
    const double ratio = std::max(std::sqrt(2.0), std::pow(double(lists), 1.0 / 19));
    while (steps < RecallCurve::max_probes) {
        const uint32 here = std::min(lists, static_cast<uint32>(std::llround(next)));
        if (steps == 0 || here > probes[steps - 1]) probes[steps++] = here;
        if (here == lists) break;
        next *= ratio;
    }
    return steps;
}

// The neighbors of a query, sorted by TID for the look-up.
struct Neighbors {
    uint32 count;
    uint64 tids[curve_neighbors];
    uint32 place[curve_neighbors];      // rank by exact distance: 0 is the nearest
    uint32 list_rank[curve_neighbors];  // rank of its list by distance from the query
    float distance[curve_neighbors];    // by its code
    uint32 nearer[curve_neighbors];     // entries with a smaller distance
    uint32 seen;

    // A Bloom filter of one hash over the TIDs: it rejects nearly all entries that are no
    // neighbors.
    static constexpr int filter_bits = 14;
    uint64 filter[(1 << filter_bits) / 64];
    static uint64 hash(uint64 tid) { return tid * 0x9E3779B97F4A7C15 >> (64 - filter_bits); }
    bool may_have(uint64 tid) const { return filter[hash(tid) / 64] >> hash(tid) % 64 & 1; }
};

void init_neighbors(const uint64* nearest_first, Neighbors* n) {
    *n = {};
    while (n->count < curve_neighbors && nearest_first[n->count] != 0) ++n->count;
    for (uint32 i = 0; i < n->count; ++i) {
        n->place[i] = i;
        n->list_rank[i] = PG_UINT32_MAX;
    }
    std::sort(n->place, n->place + n->count,
              [&](uint32 a, uint32 b) { return nearest_first[a] < nearest_first[b]; });
    for (uint32 i = 0; i < n->count; ++i) {
        n->tids[i] = nearest_first[n->place[i]];
        const uint64 at = Neighbors::hash(n->tids[i]);
        n->filter[at / 64] |= uint64{1} << at % 64;
    }
}

// The lists of an index, ranked for a query.
struct RankedLists {
    float* terms;   // (lists), by list number
    uint32* order;  // (lists): the first `wanted` are the nearest lists, nearest first
};

RankedLists rank_lists(Relation index, const MetaPage& meta, const float* query, uint32 wanted) {
    RankedLists ranked;
    ranked.terms = static_cast<float*>(palloc(meta.lists * sizeof(float)));
    ranked.order = static_cast<uint32*>(palloc(meta.lists * sizeof(uint32)));
    read_list_terms(index, meta, query, ranked.terms);
    for (uint32 i = 0; i < meta.lists; ++i) ranked.order[i] = i;
    const auto nearer = [&](uint32 a, uint32 b) {
        return ranked.terms[a] < ranked.terms[b] || (ranked.terms[a] == ranked.terms[b] && a < b);
    };
    uint32* end = ranked.order + meta.lists;
    if (wanted < meta.lists) std::nth_element(ranked.order, ranked.order + wanted, end, nearer);
    std::sort(ranked.order, ranked.order + std::min(wanted, meta.lists), nearer);
    return ranked;
}

// A first walk finds the neighbors and their distances by code. A second walk keeps the distances
// that are less than the farthest of these, which are few; it only counts the other entries.

struct Search {
    const float* table;  // null: find the lists of the neighbors, not their distances
    float list_term;
    uint32 list_rank;
    Neighbors* neighbors;
};

void look_for_neighbors(void* state, uint32, Page page, const EntryLayout& layout) {
    Search* search = static_cast<Search*>(state);
    Neighbors* n = search->neighbors;
    const uint32 count = page_tail(page)->count;
    const ItemPointerData* tids = page_tids(page, layout);
    for (uint32 i = 0; i < count; ++i) {
        const uint64 tid = tid_number(tids[i]);
        if (!n->may_have(tid)) continue;
        const uint64* at = std::lower_bound(n->tids, n->tids + n->count, tid);
        if (at == n->tids + n->count || *at != tid) continue;
        const Size which = at - n->tids;
        n->seen += n->list_rank[which] == PG_UINT32_MAX;
        n->list_rank[which] = search->list_rank;
        if (search->table)
            n->distance[which] = code_distance(
                search->table, layout.m,
                {page_codes(page), layout.capacity, count, page_offsets(page, layout)},
                search->list_term, i);
    }
}

// Searches the nearest `lists` lists until all neighbors are found.
void search_lists(Relation index, const MetaPage& meta, const RankedLists& ranked, uint32 lists,
                  const float* table, Neighbors* n) {
    Search search{table, 0, 0, n};
    const ListVisitor visitor{look_for_neighbors, &search};
    for (; search.list_rank < lists && n->seen < n->count; ++search.list_rank) {
        search.list_term = ranked.terms[ranked.order[search.list_rank]];
        walk_lists(index, meta, ranked.order + search.list_rank, 1, visitor);
    }
}

struct CurveWalk {
    const float* table;
    float bound;  // only smaller distances are kept
    float list_term;
    uint64 self;
    Size entries;           // seen
    float* distances;       // (kept), list after list
    Size kept;              // distances
    Size room;              // distances allocated
    float* page_distances;  // of all entries of one page
};

void visit_page(void* state, uint32, Page page, const EntryLayout& layout) {
    CurveWalk* walk = static_cast<CurveWalk*>(state);
    const uint32 count = page_tail(page)->count;
    const ItemPointerData* tids = page_tids(page, layout);
    walk->entries += count;
    if (walk->kept + count > walk->room) {
        walk->room = 2 * walk->room + count;
        walk->distances =
            static_cast<float*>(repalloc_huge(walk->distances, walk->room * sizeof(float)));
    }
    scan_codes(walk->table, layout.m,
               {page_codes(page), layout.capacity, count, page_offsets(page, layout)},
               walk->list_term, walk->page_distances);
    for (uint32 i = 0; i < count; ++i)
        if (walk->page_distances[i] < walk->bound && tid_number(tids[i]) != walk->self)
            walk->distances[walk->kept++] = walk->page_distances[i];
}

// Writes for each neighbor the rank of its list; returns how many neighbors there are.
uint32 rank_neighbor_lists(Relation index, const MetaPage& meta, const CurveQuery& query,
                           uint32* list_ranks) {
    const RankedLists ranked = rank_lists(index, meta, query.vector, meta.lists);
    Neighbors neighbors;
    init_neighbors(query.neighbors, &neighbors);
    if (query.lists) {
        uint32* rank_of = static_cast<uint32*>(palloc(meta.lists * sizeof(uint32)));
        for (uint32 rank = 0; rank < meta.lists; ++rank) rank_of[ranked.order[rank]] = rank;
        for (uint32 i = 0; i < neighbors.count; ++i)
            list_ranks[i] = query.lists[i] < meta.lists ? rank_of[query.lists[i]] : PG_UINT32_MAX;
        return neighbors.count;
    }
    search_lists(index, meta, ranked, meta.lists, nullptr, &neighbors);
    for (uint32 i = 0; i < neighbors.count; ++i) list_ranks[i] = neighbors.list_rank[i];
    return neighbors.count;
}

// The counts of a CurveWalk at the end of a list.
struct ListEnd {
    Size entries;
    Size kept;
};

// The neighbors that were found, nearest by their codes first.
struct ByDistance {
    uint32 count;
    uint32 which[curve_neighbors];
    float distance[curve_neighbors];
    // Entries nearer than this neighbor, but not nearer than the one before it.
    uint32 passed[curve_neighbors + 1];

    explicit ByDistance(const Neighbors& n) : count(0), passed{} {
        // No entry compares as nearer than NaN: such a neighbor keeps nearer = 0.
        for (uint32 i = 0; i < n.count; ++i)
            if (n.list_rank[i] != PG_UINT32_MAX && !std::isnan(n.distance[i])) which[count++] = i;
        std::sort(which, which + count,
                  [&](uint32 a, uint32 b) { return n.distance[a] < n.distance[b]; });
        for (uint32 i = 0; i < count; ++i) distance[i] = n.distance[which[i]];
    }
    float farthest() const {
        return count > 0 ? distance[count - 1] : -std::numeric_limits<float>::infinity();
    }
    void pass(const float* begin, const float* end) {
        for (; begin < end; ++begin)
            ++passed[std::upper_bound(distance, distance + count, *begin) - distance];
    }
    void write_nearer(uint32* nearer) const {
        uint32 sum = 0;
        for (uint32 i = 0; i < count; ++i) nearer[which[i]] = sum += passed[i];
    }
};

// How many neighbors a scan with `probes` probes finds, by k and candidate factor.
struct StepHits {
    double hits[RecallCurve::ks][RecallCurve::factors];

    StepHits(const Neighbors& n, uint32 probes) : hits{} {
        for (uint32 i = 0; i < n.count; ++i) {
            if (n.list_rank[i] >= probes) continue;
            for (int k = 0; k < RecallCurve::ks; ++k) {
                if (n.place[i] >= RecallCurve::k_values[k]) continue;
                int f = 0;
                while (f < RecallCurve::factors &&
                       n.nearer[i] >= RecallCurve::factor_values[f] * RecallCurve::k_values[k])
                    ++f;
                if (f < RecallCurve::factors) ++hits[k][f];
            }
        }
        // A neighbor found with some candidates is found with more, too.
        for (int k = 0; k < RecallCurve::ks; ++k)
            for (int f = 1; f < RecallCurve::factors; ++f) hits[k][f] += hits[k][f - 1];
    }
    void add_to(uint32 step, CurveCounts* counts) const {
        for (int k = 0; k < RecallCurve::ks; ++k)
            for (int f = 0; f < RecallCurve::factors; ++f) counts->hits[k][step][f] += hits[k][f];
    }
};

void count_query(const Neighbors& n, CurveCounts* counts) {
    for (int k = 0; k < RecallCurve::ks; ++k)
        counts->wanted[k] += std::min(n.count, RecallCurve::k_values[k]);
    ++counts->queries;
}

// Adds to the counts what the walk over a query's lists found at the first `steps` steps. `far` may
// be null.
void count_steps(const CurveGrid& grid, uint32 steps, const float* distances, const ListEnd* ends,
                 ByDistance* sorted, Neighbors* n, CurveCounts* all, CurveCounts* far) {
    Size at = 0;
    for (uint32 step = 0; step < steps; ++step) {
        const uint32 probes = grid.probes[step];
        const ListEnd& end = ends[probes - 1];
        sorted->pass(distances + at, distances + end.kept);
        at = end.kept;
        sorted->write_nearer(n->nearer);
        const StepHits hits(*n, probes);
        for (CurveCounts* counts : {step < grid.near_steps ? all : nullptr, far}) {
            if (!counts) continue;
            hits.add_to(step, counts);
            counts->scanned[step] += static_cast<double>(end.entries);
        }
    }
    count_query(*n, all);
    if (far) count_query(*n, far);
}

void tally_in_context(Relation index, const MetaPage& meta, const CurveGrid& grid,
                      const CurveQuery& query, bool far, CurveTally* tally) {
    const uint32 steps = far ? grid.steps : grid.near_steps;
    const uint32 probes = grid.probes[steps - 1];
    Stopwatch watch;
    const RankedLists ranked = rank_lists(index, meta, query.vector, probes);
    float* table =
        static_cast<float*>(palloc(static_cast<Size>(meta.m) * codewords * sizeof(float)));
    if (meta.bits == 4) {
        // The walk needs the distances of all entries: expands the table to whole bytes.
        float* halves = static_cast<float*>(palloc(table_floats(meta) * sizeof(float)));
        read_table(index, meta, query.vector, halves);
        pair_nibble_table(halves, meta.m, table);
    } else {
        read_table(index, meta, query.vector, table);
    }
    tally->effort.ranking += watch.lap();
    Neighbors n;
    init_neighbors(query.neighbors, &n);
    search_lists(index, meta, ranked, probes, table, &n);
    ByDistance sorted(n);
    tally->effort.looking += watch.lap();

    CurveWalk walk = {};
    walk.table = table;
    walk.bound = sorted.farthest();
    walk.self = query.self;
    walk.room = 4096;
    walk.distances = static_cast<float*>(palloc(walk.room * sizeof(float)));
    walk.page_distances = static_cast<float*>(
        palloc((EntryLayout::of(meta.m, meta.attributes).capacity + 8) * sizeof(float)));
    ListEnd* ends = static_cast<ListEnd*>(palloc(probes * sizeof(ListEnd)));
    const ListVisitor visitor{visit_page, &walk};
    for (uint32 rank = 0; rank < probes; ++rank) {
        walk.list_term = ranked.terms[ranked.order[rank]];
        walk_lists(index, meta, ranked.order + rank, 1, visitor);
        ends[rank] = {walk.entries, walk.kept};
    }
    tally->effort.scanning += watch.lap();
    tally->effort.entries += static_cast<double>(walk.entries);
    count_steps(grid, steps, walk.distances, ends, &sorted, &n, &tally->all,
                far && grid.near_steps < grid.steps ? &tally->far : nullptr);
    tally->effort.counting += watch.lap();
}

// Measuring many more probes than scans need would take most of the time. The trial queries show
// with how many probes nearly all neighbors are found; the grid ends one step beyond. Where that is
// still many entries, the near steps end one step beyond the probes that find most neighbors, and a
// part of the queries measures the rest.
void cut_probe_grid(Relation index, const MetaPage& meta, const CurveQuery* queries, uint32 count,
                    MemoryContext context, CurveGrid* grid) {
    constexpr uint32 trial_queries = curve_trial_queries;
    constexpr double nearly_all = 0.998;
    constexpr double most = 0.97;
    constexpr double many_entries = 1 << 24;
    uint32* ranks = static_cast<uint32*>(palloc(trial_queries * curve_neighbors * sizeof(uint32)));
    uint32 ranked = 0;
    for (uint32 i = 0; i < std::min(count, trial_queries); ++i) {
        const MemoryContext before = MemoryContextSwitchTo(context);
        ranked += rank_neighbor_lists(index, meta, queries[i], ranks + ranked);
        MemoryContextSwitchTo(before);
        MemoryContextReset(context);
    }
    std::sort(ranks, ranks + ranked);
    const auto steps_for = [&](double share) {
        const uint32 last = ranks[static_cast<uint32>(share * (ranked - 1))];
        uint32 steps = 0;
        while (steps < grid->steps && grid->probes[steps] <= last) ++steps;
        return std::min(grid->steps, steps + 2);
    };
    if (ranked > 0) grid->steps = steps_for(nearly_all);
    grid->near_steps = grid->steps;
    const double entries = static_cast<double>(meta.rows_at_build) / meta.lists *
                           grid->probes[grid->steps - 1] * count;
    if (ranked > 0 && entries > many_entries) grid->near_steps = steps_for(most);
    pfree(ranks);
}

}  // namespace

void tally_query(Relation index, const MetaPage& meta, const CurveGrid& grid,
                 const CurveQuery& query, uint32 number, CurveTally* tally) {
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq curve", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    tally_in_context(index, meta, grid, query, number % far_queries_of == 0, tally);
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
}

namespace {

void add_counts(const CurveCounts& counts, CurveCounts* sum) {
    for (int k = 0; k < RecallCurve::ks; ++k) {
        sum->wanted[k] += counts.wanted[k];
        for (int step = 0; step < RecallCurve::max_probes; ++step)
            for (int f = 0; f < RecallCurve::factors; ++f)
                sum->hits[k][step][f] += counts.hits[k][step][f];
    }
    for (int step = 0; step < RecallCurve::max_probes; ++step)
        sum->scanned[step] += counts.scanned[step];
    sum->queries += counts.queries;
}

}  // namespace

void add_tally(const CurveTally& tally, CurveTally* sum) {
    add_counts(tally.all, &sum->all);
    add_counts(tally.far, &sum->far);
    sum->effort.ranking += tally.effort.ranking;
    sum->effort.looking += tally.effort.looking;
    sum->effort.scanning += tally.effort.scanning;
    sum->effort.counting += tally.effort.counting;
    sum->effort.entries += tally.effort.entries;
}

CurveGrid begin_curve(Relation index, const MetaPage& meta, const CurveQuery* queries,
                      uint32 count) {
    CurveGrid grid = {};
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq curve", ALLOCSET_DEFAULT_SIZES);
    grid.steps = fill_probe_grid(meta.lists, grid.probes);
    cut_probe_grid(index, meta, queries, count, context, &grid);
    MemoryContextDelete(context);
    return grid;
}

namespace {

// Few queries measure the gain beyond the near steps: subtracts three quarters of its standard
// error, as safe_target() in index/effort does.
double sure_gain(double gain, double queries) {
    if (gain <= 0) return gain;
    return std::max(0.0, gain - 0.75 * std::sqrt(gain * (1 - gain) / queries));
}

}  // namespace

RecallCurve end_curve(const CurveGrid& grid, const CurveTally& tally, uint32 count) {
    RecallCurve curve = {};
    curve.probe_steps = grid.steps;
    std::copy_n(grid.probes, grid.steps, curve.probes);
    if (tally.all.wanted[0] == 0) return curve;
    const CurveEffort& effort = tally.effort;
    ereport(DEBUG1, (errmsg_internal("%u queries of the curve to %u probes, some to %u: %.3f s to "
                                     "rank lists, %.3f s to look for neighbors, %.3f s to scan "
                                     "%.0f entries, %.3f s to count, of all processes together",
                                     count, grid.probes[grid.near_steps - 1],
                                     grid.probes[grid.steps - 1], effort.ranking, effort.looking,
                                     effort.scanning, effort.entries, effort.counting)));
    curve.queries = count;
    // A far step has what all queries found at the last near step, plus what the queries that
    // measure all steps gained from there on.
    const uint32 near = grid.near_steps - 1;
    for (uint32 step = 0; step < grid.steps; ++step) {
        const bool far = step > near;
        const uint32 from = far ? near : step;
        double scanned = tally.all.scanned[from] / tally.all.queries;
        if (far) scanned += (tally.far.scanned[step] - tally.far.scanned[near]) / tally.far.queries;
        curve.scanned[step] = static_cast<float>(scanned);
        for (int k = 0; k < RecallCurve::ks; ++k)
            for (int f = 0; f < RecallCurve::factors; ++f) {
                double recall = tally.all.hits[k][from][f] / tally.all.wanted[k];
                if (far && tally.far.wanted[k] > 0)
                    recall += sure_gain((tally.far.hits[k][step][f] - tally.far.hits[k][near][f]) /
                                            tally.far.wanted[k],
                                        tally.far.queries);
                curve.recall[k][step][f] =
                    static_cast<uint16>(std::floor(65535 * std::clamp(recall, 0.0, 1.0)));
            }
    }
    return curve;
}

RecallCurve measure_curve(Relation index, const MetaPage& meta, const CurveQuery* queries,
                          uint32 count) {
    const CurveGrid grid = begin_curve(index, meta, queries, count);
    CurveTally tally = {};
    for (uint32 i = 0; i < count; ++i) {
        CHECK_FOR_INTERRUPTS();
        tally_query(index, meta, grid, queries[i], i, &tally);
    }
    return end_curve(grid, tally, count);
}

}  // namespace pgwarp
