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
#include "extension/build/curve_query.h"
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

// The neighbors of a query, sorted by TID for the look-up.
struct Neighbors {
    static constexpr uint32 most = most_curve_neighbors;
    uint32 count;
    uint64 tids[most];
    uint32 place[most];      // rank by exact distance: 0 is the nearest
    uint32 list_rank[most];  // rank of its list by distance from the query
    float distance[most];    // by its code
    float exact[most];
    uint32 seen;

    // A Bloom filter of one hash over the TIDs: it rejects nearly all entries that are no
    // neighbors.
    static constexpr int filter_bits = 14;
    uint64 filter[(1 << filter_bits) / 64];
    static uint64 hash(uint64 tid) { return tid * 0x9E3779B97F4A7C15 >> (64 - filter_bits); }
    bool may_have(uint64 tid) const { return filter[hash(tid) / 64] >> hash(tid) % 64 & 1; }
};

void init_neighbors(const CurveQuery& query, Neighbors* n) {
    const Neighbor* nearest_first = query.neighbors;
    *n = {};
    while (n->count < query.room && nearest_first[n->count].id != 0) ++n->count;
    for (uint32 i = 0; i < n->count; ++i) {
        n->place[i] = i;
        n->list_rank[i] = PG_UINT32_MAX;
    }
    std::sort(n->place, n->place + n->count,
              [&](uint32 a, uint32 b) { return nearest_first[a].id < nearest_first[b].id; });
    for (uint32 i = 0; i < n->count; ++i) {
        n->tids[i] = nearest_first[n->place[i]].id;
        n->exact[i] = nearest_first[n->place[i]].distance;
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

// The nearest distances of a walk, for radii.
struct NearDistances {
    Size most;     // kept
    Size count;    // in `items`
    float bound;   // not below this: farther than `most` others
    float* items;  // (2 most)

    void init(Size wanted) {
        most = wanted;
        count = 0;
        bound = std::numeric_limits<float>::infinity();
        items = static_cast<float*>(palloc(2 * most * sizeof(float)));
    }
    void add(float distance) {
        if (!(distance < bound)) return;
        items[count++] = distance;
        if (count < 2 * most) return;
        std::nth_element(items, items + most - 1, items + count);
        count = most;
        bound = items[most - 1];
    }
    // The distance of the k-th nearest so far, k <= most; infinity: there are fewer.
    float distance_of(Size k) {
        if (count < k) return std::numeric_limits<float>::infinity();
        std::nth_element(items, items + k - 1, items + count);
        return items[k - 1];
    }
};

// The nearest entries of all lists but the nearest one, as a heap, and in which list each is.
struct OutsideEntries {
    struct Entry {
        float distance;
        uint32 list_rank;
    };
    Entry items[outside_rows];
    uint32 count;

    static bool nearer(const Entry& a, const Entry& b) { return a.distance < b.distance; }
    // The distance of the last, if there are as many.
    float radius() const {
        return count < outside_rows ? std::numeric_limits<float>::infinity() : items[0].distance;
    }
    void add(const Entry& entry) {
        if (!(entry.distance < radius())) return;
        if (count == outside_rows)
            std::pop_heap(items, items + count, nearer);
        else
            ++count;
        items[count - 1] = entry;
        std::push_heap(items, items + count, nearer);
    }
};

struct CurveWalk {
    const float* table;
    float bound;  // no greater distances are kept
    float list_term;
    uint64 self;
    Size entries;  // seen
    struct Kept {
        float distance;
        uint64 tid;
    };
    Kept* items;  // (kept), list after list
    Size kept;
    Size room;              // allocated
    float* page_distances;  // of all entries of one page
    NearDistances near;
    uint32 list_rank;
    OutsideEntries outside;

    void make_room(Size more) {
        if (kept + more <= room) return;
        room = 2 * room + more;
        items = static_cast<Kept*>(repalloc_huge(items, room * sizeof(Kept)));
    }
    void add(float distance, uint64 tid) {
        near.add(distance);
        if (list_rank > 0) outside.add({distance, list_rank});
        if (distance <= bound) items[kept++] = {distance, tid};
    }
};

void visit_page(void* state, uint32, Page page, const EntryLayout& layout) {
    CurveWalk* walk = static_cast<CurveWalk*>(state);
    const uint32 count = page_tail(page)->count;
    const ItemPointerData* tids = page_tids(page, layout);
    walk->entries += count;
    walk->make_room(count);
    scan_codes(walk->table, layout.m,
               {page_codes(page), layout.capacity, count, page_offsets(page, layout)},
               walk->list_term, walk->page_distances);
    const float farthest = std::max({walk->bound, walk->near.bound, walk->outside.radius()});
    for (uint32 i = 0; i < count; ++i) {
        const float distance = walk->page_distances[i];
        if (!(distance <= farthest) || tid_number(tids[i]) == walk->self) continue;
        walk->add(distance, tid_number(tids[i]));
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
            if (n.list_rank[i] == PG_UINT32_MAX) continue;
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
                if (n.place[which[i]] < RecallCurve::k_values[k])
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
        found.hits[0] += n.list_rank[which] < lists && n.place[which] < RecallCurve::k_values[k];
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
    float outside_radius[waves];  // behind the nearest list
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
void count_outside(const WalkedLists& walked, const OutsideEntries& nearest_others,
                   CurveTally* tally) {
    if (nearest_others.count < outside_rows) return;
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
                ListWave::after(plan, entries, entries, walked.outside_radius[wave]);
            if (!decides.takes(plan, ranked.terms[ranked.order[next]], nearest, entries)) break;
            ++next;
        }
        for (const OutsideEntries::Entry& entry : nearest_others.items)
            tally->outside_hits[t] += entry.list_rank < next;
        tally->outside_cut[t] += next == walked.count && !walked.all;
    }
    ++tally->outside_queries;
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

int error_bin(double error) {
    const double size = std::abs(error) / least_error;
    if (!(size > 1)) return error_bins_of_sign;
    const int bin =
        std::min(error_bins_of_sign, 1 + static_cast<int>(std::log2(size) / error_octaves));
    return error_bins_of_sign + (error > 0 ? bin : -bin);
}

// The codes of the k nearest rows, compared with the k-th row and with the k-th nearest code.
void count_errors(const Neighbors& n, uint32 k, double kth_code, double shift,
                  CodeErrorBins* bins) {
    double kth_row = 0;
    for (uint32 i = 0; i < n.count; ++i)
        if (n.place[i] == std::min(k, n.count) - 1) kth_row = n.exact[i];
    for (uint32 i = 0; i < n.count; ++i) {
        if (n.place[i] >= k || n.list_rank[i] == PG_UINT32_MAX || std::isnan(n.distance[i]))
            continue;
        const double code = n.distance[i] + shift;
        // A code that is so near is found in any case.
        const double root = code > 0 ? std::sqrt(code) : INFINITY;
        ++bins->beyond_row[error_bin((n.distance[i] - kth_row) / root)];
        ++bins->beyond_code[error_bin((n.distance[i] - kth_code) / root)];
    }
}

void count_radius(float radius, float shift, double* bins) {
    if (std::isfinite(radius)) ++bins[error_bin((radius + shift) / distance_unit(shift))];
}

// The most rows that the query measures.
uint32 most_rows(const Neighbors& n) {
    int last = RecallCurve::ks - 1;
    while (last > 0 && !measures(n, last)) --last;
    return RecallCurve::k_values[last];
}

void count_page(void* state, uint32, Page page, const EntryLayout&) {
    *static_cast<uint32*>(state) += page_tail(page)->count;
}

constexpr uint32 uncounted = PG_UINT32_MAX;

uint32 entries_of(Relation index, const MetaPage& meta, uint32 list, uint32* list_sizes) {
    if (list_sizes[list] == uncounted) {
        uint32 entries = 0;
        walk_lists(index, meta, &list, 1, {count_page, &entries});
        list_sizes[list] = entries;
    }
    return list_sizes[list];
}

// The neighbors in the order of their lists.
struct NeighborsByList {
    uint32 count = 0;
    uint32 next = 0;
    uint32 which[most_curve_neighbors];

    explicit NeighborsByList(const Neighbors& n) {
        for (uint32 i = 0; i < n.count; ++i)
            if (n.list_rank[i] != PG_UINT32_MAX && !std::isnan(n.distance[i])) which[count++] = i;
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

void tally_in_context(Relation index, const MetaPage& meta, const CurveGrid& grid,
                      const CurveQuery& query, bool whole, uint32* list_sizes, CurveTally* tally) {
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
    search_lists(index, meta, ranked, probes, table, n);
    const ByDistance sorted(*n);
    tally->effort.looking += watch.lap();

    CurveWalk walk = {};
    walk.table = table;
    walk.bound = sorted.farthest();
    walk.self = query.self;
    walk.room = 4096;
    walk.items = static_cast<CurveWalk::Kept*>(palloc(walk.room * sizeof(CurveWalk::Kept)));
    walk.near.init(most_rows(*n));
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
        if (whole || rank < grid.looked_up) {
            const Size before = walk.entries;
            walk_lists(index, meta, &list, 1, visitor);
            list_sizes[list] = static_cast<uint32>(walk.entries - before);
            tally->effort.entries += list_sizes[list];
        } else {
            walk.entries += entries_of(index, meta, list, list_sizes);
            walk.make_room(most_curve_neighbors);
            by_list.add_to(&walk, *n);
        }
        ends[rank] = {walk.entries, walk.kept};
        if (rank == uint64{1} << 2 * outside_wave)
            walked.outside_radius[outside_wave++] = walk.outside.radius();
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
        const uint32 rows = RecallCurve::k_values[k];
        const float kth = walk.near.distance_of(rows);
        count_radius(kth, walked.shift, tally->radius[k]);
        if (std::isfinite(kth)) count_errors(*n, rows, kth, walked.shift, &tally->errors[k]);
    }
    if (query.self != 0 && (whole || grid.looked_up >= probes))
        count_outside(walked, walk.outside, tally);
    count_query(*n, all);
    tally->effort.counting += watch.lap();
}

}  // namespace

float nearest_list(Relation index, const MetaPage& meta, const CurveQuery& query) {
    const RankedLists ranked = rank_lists(index, meta, query.vector, 1);
    const float shift = code_shift(meta, query.vector);
    return (ranked.terms[ranked.order[0]] + shift) / distance_unit(shift);
}

uint32 rank_neighbor_lists(Relation index, const MetaPage& meta, const CurveQuery& query,
                           uint32* list_ranks) {
    const RankedLists ranked = rank_lists(index, meta, query.vector, meta.lists);
    auto* neighbors = static_cast<Neighbors*>(palloc(sizeof(Neighbors)));
    init_neighbors(query, neighbors);
    if (query.lists) {
        uint32* rank_of = static_cast<uint32*>(palloc(meta.lists * sizeof(uint32)));
        for (uint32 rank = 0; rank < meta.lists; ++rank) rank_of[ranked.order[rank]] = rank;
        for (uint32 i = 0; i < neighbors->count; ++i)
            list_ranks[i] = query.lists[i] < meta.lists ? rank_of[query.lists[i]] : PG_UINT32_MAX;
        return neighbors->count;
    }
    search_lists(index, meta, ranked, meta.lists, nullptr, neighbors);
    for (uint32 i = 0; i < neighbors->count; ++i)
        list_ranks[neighbors->place[i]] = neighbors->list_rank[i];
    return neighbors->count;
}

uint32* uncounted_lists(const MetaPage& meta) {
    auto* sizes = static_cast<uint32*>(palloc(Max(meta.lists, 1u) * sizeof(uint32)));
    std::fill_n(sizes, meta.lists, uncounted);
    return sizes;
}

void tally_query(Relation index, const MetaPage& meta, const CurveGrid& grid,
                 const CurveQuery& query, uint32 number, uint32* list_sizes, CurveTally* tally) {
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq curve", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    const bool whole = number < grid.whole_queries;
    tally_in_context(index, meta, grid, query, whole, list_sizes, tally);
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
}

}  // namespace pgwarp
