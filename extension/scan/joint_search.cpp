// The first rounds of the partitions of a table as one search.
//
// Each partition has lists and codes of its own. But a row is among the k nearest whatever
// partition it is in: so all take their radius, by which a query decides on its lists
// (kernels/list_effort.h), from the nearest candidates of all, and all candidates are ranked in one
// order. A partition that has none of the nearest rows takes few lists, and one of its rows is
// read, which the Merge Append asks for.
//
// The walk has two steps. In the first, each scan takes its nearest lists, until all together have
// as many entries as one index takes for its radius. In the second, each goes on as far as its own
// threshold and the common radius tell. The threshold is for as many rows as the scan has among the
// k nearest by then, or as fall to it by chance.

#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/index/effort.h"
#include "extension/index/tid.h"
#include "extension/scan/gather.h"
#include "extension/scan/state.h"
#include "extension/settings.h"
#include "extension/util/disk_reads.h"

namespace pgwarp {

namespace {

constexpr double far = std::numeric_limits<double>::infinity();

struct Part {
    IndexScanDesc scan;
    ScanState* s;
    SteppedWalk* walk;  // null: the index has no lists, its rows are known
    Size count;         // candidates that the walk kept, nearest first
    Size ranked;        // of these
    Candidate last;     // that was ranked
};

// A candidate of any part.
struct JointCandidate {
    double distance;
    int part;

    friend bool operator<(const JointCandidate& a, const JointCandidate& b) {
        return a.distance < b.distance || (a.distance == b.distance && a.part < b.part);
    }
};

struct JointSearch {
    Part* parts;
    int part_count;
    Size k;
    double rows;  // of all indexes, as they were built
    // For k rows, by the largest index:
    Size least;  // candidates that are ranked
    Size most;
    double margin;
    uint32 wider_k;
    double* numbers;  // memory for distances
    Size number_room;
};

// Rows that wait beside the lists of an index are more than a part's share of LIMIT, maybe.
bool is_plain(const ScanState* s) {
    return !s->exact.wanted && s->pending.done && s->lists.table && s->goal.threshold > 0 &&
           s->conditions.count == 0 && s->goal.filtered == 0 && !s->bound.given && !refines(s) &&
           s->audited.k == 0 && settings.candidates == 0;
}

// Whether codes of two indexes err alike.
bool has_like_codes(const MetaPage& a, const MetaPage& b) {
    return a.m == b.m && a.bits == b.bits && a.quantizer == b.quantizer && a.dims == b.dims &&
           a.metric == b.metric;
}

double* numbers_for(JointSearch* search, Size count) {
    if (count > search->number_room) {
        if (search->numbers) pfree(search->numbers);
        search->number_room = 2 * count;
        search->numbers = static_cast<double*>(palloc(search->number_room * sizeof(double)));
    }
    return search->numbers;
}

double nth(double* numbers, Size count, Size n) {
    if (n == 0 || count < n) return far;
    std::nth_element(numbers, numbers + n - 1, numbers + count);
    return numbers[n - 1];
}

// --- lists

double share_of(const JointSearch& search, const Part& part) {
    return static_cast<double>(part.s->meta.rows_at_build) / std::max(search.rows, 1.0);
}

// Of the k nearest rows, those that fall to a part: at least one.
uint32 rows_by_chance(const JointSearch& search, const Part& part) {
    const double rows = std::round(share_of(search, part) * static_cast<double>(search.k));
    return static_cast<uint32>(std::max(rows, 1.0));
}

void choose_limits(JointSearch* search, Size k) {
    const MetaPage* largest = nullptr;
    for (int i = 0; i < search->part_count; ++i) {
        const MetaPage& meta = search->parts[i].s->meta;
        if (meta.lists == 0) continue;
        search->rows += static_cast<double>(meta.rows_at_build);
        if (!largest || meta.rows_at_build > largest->rows_at_build) largest = &meta;
    }
    search->k = k;
    const Effort effort = choose_effort(*largest, static_cast<uint32>(k), ByQuery::yes);
    // An index of fewer rows needs fewer candidates, as its rows are farther apart: those of all
    // parts together tell how many this many rows need. The k nearest need no more than these.
    constexpr double most_more = 64;
    double candidates = 0;
    for (int i = 0; i < search->part_count; ++i) {
        const Part& part = search->parts[i];
        if (part.s->meta.lists > 0)
            candidates +=
                choose_effort(part.s->meta, rows_by_chance(*search, part), ByQuery::yes).candidates;
    }
    candidates = std::min(candidates, effort.candidates + most_more);
    search->least = std::max({Size{effort.candidates}, k, static_cast<Size>(candidates)});
    search->margin = effort.margin;
    search->wider_k = effort.wider_k;
    search->most =
        search->margin > 0 ? most_ranked_of(search->least, false, search->wider_k) : search->least;
    search->most = std::max({search->most, search->least, Size{search->wider_k}});
}

// Distances by code of all candidates that the walks have kept so far.
Size collect(JointSearch* search) {
    Size count = 0;
    for (int i = 0; i < search->part_count; ++i)
        if (const SteppedWalk* walk = search->parts[i].walk) count += walk->selection.count();
    double* numbers = numbers_for(search, count);
    Size at = 0;
    for (int i = 0; i < search->part_count; ++i) {
        const SteppedWalk* walk = search->parts[i].walk;
        if (!walk) continue;
        for (Size c = 0; c < walk->selection.count(); ++c) numbers[at++] = walk->items[c].distance;
    }
    return count;
}

void first_step(JointSearch* search) {
    // The radius of one index is that of the curve, of few entries. Here more tell it better.
    constexpr double more = 8;
    constexpr double part_of_rows = 1.0 / 64;
    const double least =
        first_entries(static_cast<uint32>(search->k), static_cast<uint64>(search->rows));
    const double entries = std::clamp(part_of_rows * search->rows, least, more * least);
    for (int i = 0; i < search->part_count; ++i) {
        Part& part = search->parts[i];
        if (part.s->meta.lists == 0) continue;
        const MemoryContext before = MemoryContextSwitchTo(part.s->context);
        part.walk = begin_steps(part.scan, part.s, search->most);
        QueryEffort& effort = part.walk->effort;
        effort.limit.first_entries =
            static_cast<uint32>(std::ceil(share_of(*search, part) * entries * part.s->goal.growth));
        effort.waits_for_radius = true;
        walk_step(part.scan, part.s, part.walk);
        MemoryContextSwitchTo(before);
    }
}

void second_step(JointSearch* search) {
    const Size count = collect(search);
    const double kth = nth(search->numbers, count, search->k);
    double radius = kth;
    if (search->wider_k > search->k)
        radius = wider_radius(static_cast<float>(kth),
                              static_cast<float>(nth(search->numbers, count, search->wider_k)));
    const double limit =
        std::max(nth(search->numbers, count, search->least), greatest_limit(kth, search->margin));
    for (int i = 0; i < search->part_count; ++i) {
        Part& part = search->parts[i];
        if (!part.walk) continue;
        // Rows of the part among the nearest so far. The Merge Append reads one beyond.
        constexpr Size least = 2;
        Size near = 0;
        for (Size c = 0; c < part.walk->selection.count(); ++c)
            near += part.walk->items[c].distance <= kth;
        if (!std::isinf(limit)) part.walk->selection.narrow(limit, least);
        const auto rows = static_cast<uint32>(
            std::clamp<Size>(near, rows_by_chance(*search, part), std::max<Size>(search->k, 1)));
        const Effort chosen = choose_effort(part.s->meta, rows, ByQuery::yes);
        QueryEffort& effort = part.walk->effort;
        effort.waits_for_radius = false;
        if (chosen.threshold > 0)
            effort.limit.threshold =
                chosen.threshold * static_cast<float>(std::sqrt(part.s->goal.growth));
        else
            effort.limit.threshold = part.s->goal.threshold;
        effort.limit.first_lists = chosen.first_lists;
        effort.limit.k = rows;
        // Without k entries so far there is no radius: each part finds its own.
        effort.limit.has_radius = !std::isinf(radius);
        effort.limit.radius = static_cast<float>(radius);
        const MemoryContext before = MemoryContextSwitchTo(part.s->context);
        walk_step(part.scan, part.s, part.walk);
        part.count = end_steps(part.s, part.walk);
        expect_rows(part.s, part.count);
        MemoryContextSwitchTo(before);
    }
}

// --- ranking

// The distance of the k-th nearest row found.
double kth_distance(JointSearch* search) {
    Size count = 0;
    for (int i = 0; i < search->part_count; ++i) count += search->parts[i].s->round.count;
    double* numbers = numbers_for(search, count);
    Size at = 0;
    for (int i = 0; i < search->part_count; ++i) {
        const RoundRows& round = search->parts[i].s->round;
        for (Size row = 0; row < round.count; ++row) numbers[at++] = round.rows[row].distance;
    }
    return nth(numbers, count, search->k);
}

// Ranks the part's next candidates.
void rank_next(Part* part, Size count) {
    if (count == 0) return;
    const MemoryContext before = MemoryContextSwitchTo(part->s->context);
    Candidate* items = part->walk->items + part->ranked;
    part->last = items[count - 1];
    rank_candidates(part->scan, part->s, items, count);
    part->ranked += count;
    MemoryContextSwitchTo(before);
}

// Prefetches for rows that will be read, of all parts.
void prefetch(const JointSearch& search, const Size* counts) {
    DiskReads reads;
    for (const PrefetchStage stage :
         {PrefetchStage::hint, PrefetchStage::read, PrefetchStage::page, PrefetchStage::tuple}) {
        if (stage == PrefetchStage::read && !reads.needed()) continue;
        for (int i = 0; i < search.part_count; ++i) {
            const Part& part = search.parts[i];
            for (Size c = 0; c < counts[i]; ++c)
                prefetch_row(part.s->reader, number_tid(part.walk->items[part.ranked + c].id),
                             stage);
        }
    }
}

// All candidates in one order.
Size join_candidates(const JointSearch& search, JointCandidate** joined) {
    Size count = 0;
    for (int i = 0; i < search.part_count; ++i) count += search.parts[i].count;
    auto* all = static_cast<JointCandidate*>(palloc(Max(count, Size{1}) * sizeof(JointCandidate)));
    Size at = 0;
    for (int i = 0; i < search.part_count; ++i)
        for (Size c = 0; c < search.parts[i].count; ++c)
            all[at++] = {search.parts[i].walk->items[c].distance, i};
    std::sort(all, all + count);
    *joined = all;
    return count;
}

// The greatest distance by code that a row nearer than this may have, but for few.
double last_worth_ranking(const JointSearch& search, double kth) {
    constexpr double missing = 0.002;
    constexpr double least_errors = 16;
    Differences errors = {};
    for (int i = 0; i < search.part_count; ++i) errors.add(search.parts[i].s->round.errors);
    if (errors.count < least_errors) return far;
    const double scale = normalizes(search.parts[0].s->meta.metric) ? 2 : 1;
    return scale * (kth + errors.greatest(missing));
}

// Ranks candidates, nearest by code first, until the next ones are so far that hardly any can be
// among the k nearest rows. Returns the distance of the k-th.
double rank_jointly(JointSearch* search) {
    // Fewer rows tell too little of the errors of codes.
    constexpr Size few = 32;
    JointCandidate* joined;
    const Size all = join_candidates(*search, &joined);
    const Size count = count_worth_ranking(all, search->least, search->k, search->margin,
                                           [joined](Size i) { return joined[i].distance; });
    auto* counts = static_cast<Size*>(palloc(static_cast<Size>(search->part_count) * sizeof(Size)));
    Size ranked = 0;
    Size end = std::min(count, std::max({search->k, few, count / 4}));
    double kth = far;
    while (ranked < end) {
        std::fill_n(counts, search->part_count, 0);
        for (Size i = ranked; i < end; ++i) ++counts[joined[i].part];
        prefetch(*search, counts);
        for (int i = 0; i < search->part_count; ++i) rank_next(&search->parts[i], counts[i]);
        ranked = end;
        kth = kth_distance(search);
        const double last = last_worth_ranking(*search, kth);
        while (end < std::min(count, 2 * ranked) && !(joined[end].distance > last)) ++end;
    }
    pfree(counts);
    pfree(joined);
    return kth;
}

// The Merge Append takes a row of each partition, and asks for the next one where that is among the
// nearest: another round, unless there is one beyond them.
void rank_beyond(Part* part, double kth) {
    const RoundRows& round = part->s->round;
    const auto has_row_beyond = [&] {
        return std::any_of(round.rows, round.rows + round.count,
                           [kth](const RankedRow& row) { return row.distance > kth; });
    };
    for (Size step = 1; part->ranked < part->count && !has_row_beyond(); step *= 2)
        rank_next(part, std::min(step, part->count - part->ranked));
}

}  // namespace

namespace {

// Whether the scans can be searched as one: begins `search`.
bool begin(const IndexScanDesc* scans, int count, double k, JointSearch* search) {
    // Another round may be needed for rows that wait, and for an index without lists.
    if (settings.iterative_scan == static_cast<int>(IterativeScan::off)) return false;
    const MetaPage* first = nullptr;  // of an index with lists
    for (int i = 0; i < count; ++i) {
        auto* s = static_cast<ScanState*>(scans[i]->opaque);
        if (s->conditions.never) continue;
        search->parts[search->part_count++] = {scans[i], s, nullptr, 0, 0, no_floor};
        if (search->parts[0].s->meta.metric != s->meta.metric) return false;
        if (s->meta.lists == 0) continue;
        if (!is_plain(s) || (first && !has_like_codes(*first, s->meta))) return false;
        first = &s->meta;
    }
    if (!first) return false;
    choose_limits(search, static_cast<Size>(k));
    // Each scan may have all candidates.
    return search->most * static_cast<Size>(search->part_count) <= most_candidates();
}

// False: an index without lists has more rows than memory holds.
bool begin_rounds(JointSearch* search) {
    for (int i = 0; i < search->part_count; ++i) {
        Part& part = search->parts[i];
        if (part.s->meta.lists == 0) {
            first_round(part.scan);
            if (part.s->round.spilled) return false;
            continue;
        }
        const MemoryContext before = MemoryContextSwitchTo(part.s->context);
        begin_joint_round(part.scan, part.s);
        MemoryContextSwitchTo(before);
    }
    return true;
}

// Whether k rows were found, or all that there are.
bool find_rows(JointSearch* search) {
    first_step(search);
    second_step(search);
    const double kth = rank_jointly(search);
    bool all = true;
    for (int i = 0; i < search->part_count; ++i) {
        Part& part = search->parts[i];
        if (!part.walk) continue;
        rank_beyond(&part, kth);
        const MemoryContext before = MemoryContextSwitchTo(part.s->context);
        end_first_part(part.scan, part.s, part.ranked, part.count, part.last);
        end_joint_round(part.scan, part.s);
        MemoryContextSwitchTo(before);
        all &= part.s->progress.finished;
    }
    // Rows that are not visible, or few entries in the lists: a scan goes on by itself.
    return !std::isinf(kth) || all;
}

}  // namespace

JointResult search_jointly(const IndexScanDesc* scans, int count, double k) {
    JointSearch search = {};
    search.parts = static_cast<Part*>(palloc0(static_cast<Size>(count) * sizeof(Part)));
    JointResult result = JointResult::impossible;
    if (begin(scans, count, k, &search))
        result =
            begin_rounds(&search) && find_rows(&search) ? JointResult::found : JointResult::too_few;
    if (search.numbers) pfree(search.numbers);
    pfree(search.parts);
    return result;
}

}  // namespace pgwarp
