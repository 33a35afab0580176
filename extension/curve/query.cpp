// One query of the recall curve. A neighbor is found with P lists and C candidates if its list is
// among the P nearest to the query, and fewer than C entries of those lists have a smaller distance
// by their codes. One walk over the lists of a query, nearest first, measures both for every P and
// C, and for every threshold of effort by query, which gives it a P of its own. Behind the first
// lists, the walk of most queries looks up no codes but those of neighbors.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/list_plan.h"
#include "kernels/list_scan.h"
#include "kernels/nibble_scan.h"
#include "extension/curve/places.h"
#include "extension/curve/query.h"
#include "extension/curve/walk.h"
#include "extension/index/effort.h"
#include "extension/index/list_order.h"
#include "extension/index/lists.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

constexpr uint32 not_there = PG_UINT32_MAX;

// The neighbors of a query, nearest first by exact distance.
struct Neighbors {
    static constexpr uint32 most = most_curve_neighbors;
    uint32 count;
    uint64 tids[most];
    float exact[most];
    uint32 list_rank[most];  // rank of its list by distance from the query; or not_there
    float distance[most];    // by its code
};

void init_neighbors(const CurveQuery& query, Neighbors* n) {
    n->count = 0;
    for (; n->count < query.room && query.neighbors[n->count].id != 0; ++n->count) {
        n->tids[n->count] = query.neighbors[n->count].id;
        n->exact[n->count] = query.neighbors[n->count].distance;
        n->list_rank[n->count] = not_there;
    }
}

// The lists of an index, ranked for a query.
struct RankedLists {
    float* terms;   // (lists), by list number
    uint32* order;  // (lists): the first `wanted` are the nearest lists, nearest first
};

RankedLists rank_lists(Relation index, const MetaPage& meta, const float* query, uint32 wanted) {
    RankedLists ranked;
    ListOrder order = alloc_list_order(meta);
    begin_list_order(index, meta, query, &order);
    ranked.terms = order.terms;
    ranked.order = order.order;
    if (meta.parents > 0) {
        // A scan of few lists is compared with few. So is what comes first here.
        constexpr uint32 first = 4;
        wanted = std::min(wanted, meta.lists);
        for (uint32 begin = 0, end = std::min(first, wanted); begin < wanted;) {
            order_lists(index, meta, &order, begin, end);
            begin = end;
            end = std::min(2 * end, wanted);
        }
        return ranked;
    }
    const auto nearer = [&](uint32 a, uint32 b) {
        return ranked.terms[a] < ranked.terms[b] || (ranked.terms[a] == ranked.terms[b] && a < b);
    };
    uint32* end = ranked.order + meta.lists;
    if (wanted < meta.lists) std::nth_element(ranked.order, ranked.order + wanted, end, nearer);
    std::sort(ranked.order, ranked.order + std::min(wanted, meta.lists), nearer);
    return ranked;
}

// The ranks of all lists: not_there behind the first `wanted`.
uint32* ranks_of_lists(const MetaPage& meta, const RankedLists& ranked, uint32 wanted) {
    uint32* ranks = static_cast<uint32*>(palloc(meta.lists * sizeof(uint32)));
    std::fill_n(ranks, meta.lists, not_there);
    for (uint32 rank = 0; rank < wanted; ++rank) ranks[ranked.order[rank]] = rank;
    return ranks;
}

// The distance by code of the entry at a place. Entries do not move while a curve is measured:
// VACUUM does not run, or is what measures.
float distance_at(const CurveLists& lists, const NeighborPlaces::Place& place, const float* table,
                  float list_term) {
    const EntryLayout layout = layout_of(lists.meta, place.list);
    Buffer buffer;
    if (!read_list_page(lists.index, place.block, place.list, layout, BUFFER_LOCK_SHARE, &buffer))
        return std::numeric_limits<float>::quiet_NaN();
    Page page = BufferGetPage(buffer);
    const float distance = code_distance(
        table, layout.m,
        {page_codes(page), layout.capacity, page_tail(page)->count, page_offsets(page, layout)},
        list_term, place.slot);
    UnlockReleaseBuffer(buffer);
    return distance;
}

// Finds the neighbors that are in the nearest `wanted` lists, and their distances by code.
void place_neighbors(const CurveLists& lists, const RankedLists& ranked, uint32 wanted,
                     const float* table, Neighbors* n) {
    for (uint32 i = 0; i < n->count; ++i) lists.places.prefetch(n->tids[i]);
    const uint32* ranks = ranks_of_lists(lists.meta, ranked, wanted);
    for (uint32 i = 0; i < n->count; ++i) {
        const NeighborPlaces::Place* place = lists.places.find(n->tids[i]);
        if (!place || ranks[place->list] == not_there) continue;
        n->list_rank[i] = ranks[place->list];
        n->distance[i] = distance_at(lists, *place, table, ranked.terms[place->list]);
    }
}

// The counts of a CurveWalk at the end of a list.
struct ListEnd {
    Size entries;
    Size kept;
};

// Whether a query has neighbors enough to measure this k.
bool measures(const Neighbors& n, int k) {
    return n.count >= std::min(RecallCurve::k_values[k], curve_neighbors) &&
           (RecallCurve::k_values[k] <= curve_neighbors || n.count > curve_neighbors);
}

// The neighbors that were found, nearest by their codes first, and by TIDs where codes are equal:
// as scans take them.
struct ByDistance {
    static constexpr uint32 most = most_curve_neighbors;
    uint32 count;
    float distance[most];
    uint64 tid[most];
    uint32 list_rank[most];
    // By k: which of these are among the k nearest rows, in ascending order.
    uint32 count_of_k[RecallCurve::ks];
    uint16 of_k[RecallCurve::ks][most];
    // No entry compares as nearer than NaN: such neighbors are always found in their lists.
    uint32 undefined_count;
    uint32 undefined[most];  // among the query's neighbors

    explicit ByDistance(const Neighbors& n) : count(0), count_of_k{}, undefined_count(0) {
        uint32 which[most];
        for (uint32 i = 0; i < n.count; ++i) {
            if (n.list_rank[i] == not_there) continue;
            if (std::isnan(n.distance[i]))
                undefined[undefined_count++] = i;
            else
                which[count++] = i;
        }
        std::sort(which, which + count, [&](uint32 a, uint32 b) {
            return n.distance[a] < n.distance[b] ||
                   (n.distance[a] == n.distance[b] && n.tids[a] < n.tids[b]);
        });
        for (uint32 i = 0; i < count; ++i) {
            distance[i] = n.distance[which[i]];
            tid[i] = n.tids[which[i]];
            list_rank[i] = n.list_rank[which[i]];
            for (int k = 0; k < RecallCurve::ks; ++k)
                if (which[i] < RecallCurve::k_values[k])
                    of_k[k][count_of_k[k]++] = static_cast<uint16>(i);
        }
    }
    float farthest() const {
        return count > 0 ? distance[count - 1] : -std::numeric_limits<float>::infinity();
    }
    // How many of these do not come after an entry. Which way a step goes is chance, so it must not
    // be a branch.
    uint16 place_of(const CurveWalk::Kept& entry) const {
        const float of = entry.distance;
        const float* from = distance;
        uint32 left = count;
        while (left > 1) {
            const uint32 half = left / 2;
            from += from[half - 1] <= of ? half : 0;
            left -= half;
        }
        const bool last = left == 1 && *from <= of;
        auto place = static_cast<uint32>(from - distance + last);
        while (place > 0 && distance[place - 1] == of && tid[place - 1] > entry.tid) --place;
        return static_cast<uint16>(place);
    }
};

// Entries of lists, by their place among the neighbors.
struct Passed {
    uint32 counts[most_curve_neighbors + 1] = {};

    void add(const uint16* begin, const uint16* end) {
        for (; begin < end; ++begin) ++counts[*begin];
    }
};

// How many of the k nearest a scan of the first `lists` lists, which have these entries, finds, by
// candidate factor.
struct FactorHits {
    double hits[RecallCurve::factors];
};
FactorHits count_hits(const Neighbors& n, const ByDistance& sorted, const Passed& passed, int k,
                      uint32 lists) {
    FactorHits found = {};
    const double wanted = RecallCurve::wanted(RecallCurve::k_values[k]);
    for (uint32 i = 0; i < sorted.undefined_count; ++i) {
        const uint32 which = sorted.undefined[i];
        found.hits[0] += n.list_rank[which] < lists && which < RecallCurve::k_values[k];
    }
    const double undefined = found.hits[0];
    uint32 nearer = 0;  // entries
    uint32 summed = 0;
    int f = 0;
    for (uint32 i = 0; i < sorted.count_of_k[k]; ++i) {
        const uint32 at = sorted.of_k[k][i];
        while (summed <= at) nearer += passed.counts[summed++];
        while (f < RecallCurve::factors && nearer >= RecallCurve::factor_values[f] * wanted) ++f;
        if (f == RecallCurve::factors) break;
        found.hits[f] += sorted.list_rank[at] < lists;
    }
    // A neighbor found with some candidates is found with more, too. The last: with any number.
    for (int i = 1; i < RecallCurve::factors; ++i) found.hits[i] += found.hits[i - 1];
    found.hits[RecallCurve::factors - 1] = undefined;
    for (uint32 i = 0; i < sorted.count_of_k[k]; ++i)
        found.hits[RecallCurve::factors - 1] += sorted.list_rank[sorted.of_k[k][i]] < lists;
    return found;
}
double wanted_of(const Neighbors& n, int k) {
    return std::min(n.count, RecallCurve::k_values[k]);
}

// What the walk over a query's lists saw.
struct WalkedLists {
    const RankedLists* ranked;
    uint32 count;
    bool all;              // that there are
    float shift;           // kernels/list_plan.h
    float usual_nearest;   // OutsideQueries::nearest
    const uint16* places;  // of the kept distances: ByDistance::place_of()
    const ListEnd* ends;   // (count)
    // By k and wave: the radius after 1, 4, 16, ... lists (kernels/list_plan.h).
    static constexpr int waves = 11;
    static_assert(uint64{1} << 2 * (waves - 1) >= max_lists);
    float radius[RecallCurve::ks][waves];
    float outside_radius[outside_ks][waves];  // behind the nearest list
};

// One number of lists for all queries.
void count_steps(const CurveGrid& grid, const WalkedLists& walked, const ByDistance& sorted,
                 const Neighbors& n, CurveCounts* counts) {
    Passed passed;
    Size at = 0;
    for (uint32 step = 0; step < grid.steps; ++step) {
        const uint32 probes = grid.probes[step];
        const ListEnd& end = walked.ends[probes - 1];
        passed.add(walked.places + at, walked.places + end.kept);
        at = end.kept;
        counts->scanned[step] += static_cast<double>(end.entries);
        for (int k = 0; k < RecallCurve::ks; ++k) {
            if (!measures(n, k)) continue;
            const FactorHits found = count_hits(n, sorted, passed, k, probes);
            for (int f = 0; f < RecallCurve::factors; ++f) {
                const double recall = found.hits[f] / wanted_of(n, k);
                counts->hits[k][step][f] += found.hits[f];
                counts->squares[k][step][f] += recall * recall;
            }
        }
    }
}

// Effort by query, for one k.
void count_by_query(int k, const WalkedLists& walked, const ByDistance& sorted, const Neighbors& n,
                    CurveCounts* counts) {
    Passed passed;
    Size at = 0;
    uint32 lists = 0;  // that `found` is about
    uint32 next = 1;   // the first list is always taken
    int wave = 0;
    FactorHits found = {};
    ListPlan plan;
    plan.shift = walked.shift;
    plan.outside.nearest = walked.usual_nearest;
    const RankedLists& ranked = *walked.ranked;
    const float nearest = ranked.terms[ranked.order[0]];
    for (int t = 0; t < tried_thresholds; ++t) {
        plan.threshold = static_cast<float>(tried_threshold(t));
        while (next < walked.count) {
            while (next >= uint64{4} << 2 * wave) ++wave;
            const auto entries = static_cast<float>(walked.ends[next - 1].entries);
            const ListWave decides =
                ListWave::after(plan, entries, entries, walked.radius[k][wave]);
            if (!decides.takes(plan, ranked.terms[ranked.order[next]], nearest, entries)) break;
            ++next;
        }
        const ListEnd& end = walked.ends[next - 1];
        if (next != lists) {
            passed.add(walked.places + at, walked.places + end.kept);
            at = end.kept;
            found = count_hits(n, sorted, passed, k, next);
            lists = next;
        }
        for (int f = 0; f < RecallCurve::factors; ++f) counts->query_hits[k][t][f] += found.hits[f];
        counts->query_lists[k][t] += next;
        counts->query_scanned[k][t] += static_cast<double>(end.entries);
        counts->cut[k][t] += next == walked.count && !walked.all;
    }
}

// The same for a row that does not see its own list. What it has to find is nearest by code: only
// lists are measured here.
void count_outside(int k, const WalkedLists& walked, NearEntries* others, OutsideCounts* counts) {
    const uint32 rows = RecallCurve::k_values[k];
    if (others->count < rows) return;
    others->distance_of(rows);
    ListPlan plan;
    plan.shift = walked.shift;
    const RankedLists& ranked = *walked.ranked;
    const float nearest = ranked.terms[ranked.order[1]];
    const Size own = walked.ends[0].entries;
    uint32 next = 2;
    int wave = 0;
    for (int t = 0; t < tried_thresholds; ++t) {
        plan.threshold = static_cast<float>(tried_threshold(t));
        while (next < walked.count) {
            while (next > uint64{4} << 2 * wave) ++wave;
            const auto entries = static_cast<float>(walked.ends[next - 1].entries - own);
            const ListWave decides =
                ListWave::after(plan, entries, entries, walked.outside_radius[k][wave]);
            if (!decides.takes(plan, ranked.terms[ranked.order[next]], nearest, entries)) break;
            ++next;
        }
        const auto found =
            std::count_if(others->items, others->items + rows,
                          [next](const WalkedEntry& entry) { return entry.list_rank < next; });
        counts->hits[t] += static_cast<double>(found) / rows;
        counts->cut[t] += next == walked.count && !walked.all;
    }
    ++counts->queries;
}

// How many of the neighbors are behind the nearest list: no other entry there is nearer.
uint32 count_behind(const Neighbors& n) {
    return static_cast<uint32>(std::count_if(n.list_rank, n.list_rank + n.count, [](uint32 rank) {
        return rank > 0 && rank != not_there;
    }));
}

// What a query tells of rows without their own list: `behind` of its neighbors are in other lists.
// `all`: it has looked up all codes.
void count_outside(const Neighbors& n, const WalkedLists& walked, uint32 behind, bool all,
                   NearEntries* others, OutsideCounts* counts) {
    for (int k = 0; k < outside_ks; ++k) {
        // Where few more neighbors are known than are wanted, those outside are seldom enough.
        constexpr uint32 times = 10;
        const uint32 rows = RecallCurve::k_values[k];
        if (all || behind >= rows)
            count_outside(k, walked, others, &counts[k]);
        else if (n.count >= times * rows)
            ++counts[k].skipped;
    }
}

void count_query(const Neighbors& n, CurveCounts* counts) {
    for (int k = 0; k < RecallCurve::ks; ++k) {
        if (!measures(n, k)) continue;
        counts->wanted[k] += wanted_of(n, k);
        ++counts->queries[k];
    }
    ++counts->walks;
}

// At the end of a wave: takes its radii.
void take_radii(const Neighbors& n, int wave, CurveWalk* walk, WalkedLists* walked) {
    for (int k = 0; k < RecallCurve::ks; ++k)
        if (measures(n, k))
            walked->radius[k][wave] = walk->near.distance_of(RecallCurve::k_values[k]);
}
void take_outside_radii(int wave, CurveWalk* walk, WalkedLists* walked) {
    for (int k = 0; k < outside_ks; ++k)
        walked->outside_radius[k][wave] = walk->outside.distance_of(RecallCurve::k_values[k]);
}

int error_bin(double error) {
    const double size = std::abs(error) / least_error;
    if (!(size > 1)) return error_bins_of_sign;
    const auto bin = static_cast<int>(
        std::min<double>(error_bins_of_sign, 1 + std::floor(std::log2(size) / error_octaves)));
    return error_bins_of_sign + (error > 0 ? bin : -bin);
}

// The codes of all neighbors, each compared with itself.
void count_errors(const Neighbors& n, double unit, double shift, CurveTally* tally) {
    for (uint32 i = 0; i < n.count; ++i) {
        if (n.list_rank[i] == not_there || std::isnan(n.distance[i])) continue;
        const double code = n.distance[i] + shift;
        const double exact = n.exact[i] + shift;
        const double octave = usual_octave + std::log2(exact / unit);
        // It is no number where the query is so long that the shift is infinite.
        const double place = octave > 0 ? std::min(octave, distance_octaves - 1.0) : 0;
        // A code at distance 0 is always among the nearest.
        const double error = code > 0 ? (n.distance[i] - n.exact[i]) / std::sqrt(code) : 0;
        ++tally->errors[static_cast<int>(place)][error_bin(error)];
    }
}

// What the query is like, for k neighbors with this radius, where the nearest list is at `nearest`.
void count_usual(int k, float radius, float nearest, float shift, CurveTally* tally) {
    if (!std::isfinite(radius)) return;
    const double own = double{radius} + shift;
    ++tally->radius[k][error_bin(own / distance_unit(shift))];
    const double share = (double{nearest} + shift) / std::max<double>(own, least_radius);
    ++tally->share_of_radius[k][error_bin(share)];
}

// The most rows that the query measures.
uint32 most_rows(const Neighbors& n) {
    int last = RecallCurve::ks - 1;
    while (last > 0 && !measures(n, last)) --last;
    return RecallCurve::k_values[last];
}

// The neighbors in the order of their lists.
struct NeighborsByList {
    uint32 count = 0;
    uint32 next = 0;
    uint32 which[most_curve_neighbors];

    explicit NeighborsByList(const Neighbors& n) {
        for (uint32 i = 0; i < n.count; ++i)
            if (n.list_rank[i] != not_there && !std::isnan(n.distance[i])) which[count++] = i;
        std::sort(which, which + count,
                  [&n](uint32 a, uint32 b) { return n.list_rank[a] < n.list_rank[b]; });
    }
    // Adds those of the list of this rank to the walk.
    void add_to(CurveWalk* walk, const Neighbors& n) {
        while (next < count && n.list_rank[which[next]] < walk->list_rank) ++next;
        for (; next < count && n.list_rank[which[next]] == walk->list_rank; ++next)
            walk->add(n.distance[which[next]], n.tids[which[next]]);
    }
};

void tally_in_context(const CurveLists& lists, const CurveGrid& grid, const CurveQuery& query,
                      bool first, CurveTally* tally) {
    const Relation index = lists.index;
    const MetaPage& meta = lists.meta;
    auto* n = static_cast<Neighbors*>(palloc(sizeof(Neighbors)));
    init_neighbors(query, n);
    const uint32 probes = grid.probes[grid.steps - 1];
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
    place_neighbors(lists, ranked, probes, table, n);
    const ByDistance sorted(*n);
    tally->effort.placing += watch.lap();
    const uint32 behind = count_behind(*n);
    const bool all_codes =
        (first && behind < RecallCurve::k_values[outside_ks - 1]) || grid.all_codes;
    // Enough entries for the radius: farther lists hardly have one of the k nearest so far.
    constexpr Size times = 16;
    const Size near_entries = times * n->count;

    CurveWalk walk = {};
    walk.table = table;
    walk.bound = sorted.farthest();
    walk.self = query.self;
    walk.room = 4096;
    walk.items = static_cast<CurveWalk::Kept*>(palloc(walk.room * sizeof(CurveWalk::Kept)));
    walk.near.init(most_rows(*n));
    walk.outside.init(RecallCurve::k_values[outside_ks - 1]);
    walk.page_distances =
        static_cast<float*>(palloc((layout_of(meta, 0).capacity + 8) * sizeof(float)));
    ListEnd* ends = static_cast<ListEnd*>(palloc(probes * sizeof(ListEnd)));
    WalkedLists walked = {};
    int wave = 0;
    int outside_wave = 0;
    const ListVisitor visitor{visit_page, &walk};
    NeighborsByList by_list(*n);
    for (uint32 rank = 0; rank < probes; ++rank) {
        const uint32 list = ranked.order[rank];
        walk.list_term = ranked.terms[list];
        walk.list_rank = rank;
        if (all_codes || walk.entries < near_entries) {
            walk_lists(index, meta, &list, 1, visitor);
            tally->effort.entries += lists.places.list_size(list);
        } else {
            walk.entries += lists.places.list_size(list);
            walk.make_room(most_curve_neighbors);
            by_list.add_to(&walk, *n);
        }
        ends[rank] = {walk.entries, walk.kept};
        if (rank == uint64{1} << 2 * outside_wave)
            take_outside_radii(outside_wave++, &walk, &walked);
        if (rank + 1 == uint64{1} << 2 * wave) take_radii(*n, wave++, &walk, &walked);
    }
    tally->effort.scanning += watch.lap();
    walked.ranked = &ranked;
    walked.count = probes;
    walked.all = probes == meta.lists;
    auto* places = static_cast<uint16*>(
        MemoryContextAllocHuge(CurrentMemoryContext, Max(walk.kept, Size{1}) * sizeof(uint16)));
    for (Size i = 0; i < walk.kept; ++i) places[i] = sorted.place_of(walk.items[i]);
    walked.places = places;
    walked.ends = ends;
    CurveCounts* all = &tally->all;
    count_steps(grid, walked, sorted, *n, all);
    walked.shift = code_shift(meta, query.vector);
    walked.usual_nearest = far_nearest(grid.nearest) * distance_unit(walked.shift);
    for (int k = 0; k < RecallCurve::ks; ++k)
        if (measures(*n, k)) count_by_query(k, walked, sorted, *n, all);
    for (int k = 0; k < RecallCurve::ks; ++k) {
        if (!measures(*n, k)) continue;
        const uint32 rows = std::min(RecallCurve::k_values[k], n->count);
        const float kth = walk.near.distance_of(rows);
        count_usual(k, kth, ranked.terms[ranked.order[0]], walked.shift, tally);
    }
    count_errors(*n, double{grid.nearest} * distance_unit(walked.shift), walked.shift, tally);
    if (query.self != 0)
        count_outside(*n, walked, behind, all_codes, &walk.outside,
                      first ? tally->whole_outside : tally->outside);
    count_query(*n, all);
    tally->effort.counting += watch.lap();
}

}  // namespace

float nearest_list(const CurveLists& lists, const CurveQuery& query) {
    const RankedLists ranked = rank_lists(lists.index, lists.meta, query.vector, 1);
    const float shift = code_shift(lists.meta, query.vector);
    return (ranked.terms[ranked.order[0]] + shift) / distance_unit(shift);
}

uint32 rank_neighbor_lists(const CurveLists& lists, const CurveQuery& query, uint32* list_ranks) {
    const uint32 all = lists.meta.lists;
    const RankedLists ranked = rank_lists(lists.index, lists.meta, query.vector, all);
    const uint32* ranks = ranks_of_lists(lists.meta, ranked, all);
    uint32 count = 0;
    for (; count < query.room && query.neighbors[count].id != 0; ++count) {
        const NeighborPlaces::Place* place = lists.places.find(query.neighbors[count].id);
        list_ranks[count] = place ? ranks[place->list] : not_there;
    }
    return count;
}

void tally_query(const CurveLists& lists, const CurveGrid& grid, const CurveQuery& query,
                 uint32 number, CurveTally* tally) {
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq curve", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    tally_in_context(lists, grid, query, number < grid.whole_queries, tally);
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
}

}  // namespace pgwarp
