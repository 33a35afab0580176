// The first rounds of the partitions of a table as one search.
//
// Each partition has lists and codes of its own. But a row is among the k nearest whatever
// partition it is in: so all take their radius, by which a query decides on its lists
// (kernels/list_plan.h), from the nearest candidates of all, and all candidates are ranked in one
// order. A partition that has none of the nearest rows takes few lists, and one of its rows is
// read, which the Merge Append asks for.
//
// Each partition decides on its lists for the rows that fall to it by chance, by its own curve. The
// radius is that of all: of the k-th nearest candidate of any partition.

#include <algorithm>
#include <cmath>
#include <memory>

#include "extension/index/effort.h"
#include "extension/index/list_order.h"
#include "extension/index/model.h"
#include "extension/scan/gather.h"
#include "extension/scan/joint_ranking.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

// Rows that wait beside the lists of an index are more than a part's share of LIMIT, maybe.
bool is_plain(const ScanState* s) {
    return !s->exact.wanted && s->pending.done && s->lists.table && s->goal.effort.threshold > 0 &&
           s->meta.parents == 0 && !row_filter(s->reader).passes && !s->bound.given &&
           !refines(s) && s->audited.k == 0 && settings.candidates == 0;
}

// --- lists

// All candidates that the walks have kept so far, as one selection.
struct JointSelection {
    JointSearch* search;

    double distance_of(Size k) const {
        Size count = 0;
        for (int i = 0; i < search->part_count; ++i)
            if (const JointWalk* walk = search->parts[i].walk) count += walk->selection.count();
        double* numbers = numbers_for(search, count);
        Size at = 0;
        for (int i = 0; i < search->part_count; ++i) {
            const JointWalk* walk = search->parts[i].walk;
            if (!walk) continue;
            for (Size c = 0; c < walk->selection.count(); ++c)
                numbers[at++] = walk->items[c].distance;
        }
        return nth(numbers, count, k);
    }
};

// The walk of a part. It takes its own lists by its own threshold, for the rows that fall to it by
// chance; the radius is common to all parts, and renewed after a wave of each.
struct PartWalk {
    ListPlan plan;
    ListWave wave;
    uint32 taken;
    bool stopped;
};

void begin_walks(JointSearch* search, PartWalk* walks) {
    for (int i = 0; i < search->part_count; ++i) {
        JointPart& part = search->parts[i];
        walks[i].stopped = part.s->meta.lists == 0;
        if (walks[i].stopped) continue;
        ScanState* s = part.s;
        const MemoryContext before = MemoryContextSwitchTo(s->context);
        part.walk = begin_joint_walk(part.scan, s, search->most);
        MemoryContextSwitchTo(before);
        const uint32 rows = rows_by_chance(*search, part);
        Effort effort = choose_effort(s->meta, rows, checks_conditions(s));
        scale_thresholds(&effort, s->goal.growth);
        walks[i].plan = list_plan(effort, rows, search->plan.shift);
        walks[i].wave = ListWave::after(walks[i].plan, 0, 0, INFINITY);
    }
}

// Walks the lists of a part up to the end of a wave, or to the one that the query does not take.
void walk_wave(JointPart* part, PartWalk* walk, uint32 end) {
    ScanState* s = part->s;
    const MemoryContext before = MemoryContextSwitchTo(s->context);
    const uint32 lists = bounded_probes(s->meta.lists, s->meta);
    end = std::min(end, lists);
    order_lists(part->scan->indexRelation, s->meta, &s->lists, walk->taken, end);
    for (; walk->taken < end; ++walk->taken) {
        const uint32 list = s->lists.order[walk->taken];
        const float score =
            walk->wave.score(walk->plan, s->lists.terms[list], s->lists.terms[s->lists.order[0]],
                             static_cast<float>(s->seen.entries));
        if (score > walk->plan.threshold) {
            s->seen.score = score;
            break;
        }
        walk_one(part->scan, s, part->walk, list);
    }
    walk->stopped = walk->taken < end || end == lists;
    MemoryContextSwitchTo(before);
}

void walk_lists_of_all(JointSearch* search) {
    auto* walks =
        static_cast<PartWalk*>(palloc(static_cast<Size>(search->part_count) * sizeof(PartWalk)));
    std::uninitialized_value_construct_n(walks, search->part_count);
    begin_walks(search, walks);
    const JointSelection selection{search};
    for (uint32 end = 1;; end = wave_end(end)) {
        bool any = false;
        for (int i = 0; i < search->part_count; ++i)
            if (!walks[i].stopped) walk_wave(&search->parts[i], &walks[i], end);
        const auto radius = static_cast<float>(selection.distance_of(search->k));
        for (int i = 0; i < search->part_count; ++i) {
            if (walks[i].stopped) continue;
            const SeenEntries& seen = search->parts[i].s->seen;
            walks[i].wave = ListWave::after(walks[i].plan, static_cast<float>(seen.entries),
                                            static_cast<float>(seen.passing), radius);
            any = true;
        }
        if (!any) break;
    }
    pfree(walks);
    for (int i = 0; i < search->part_count; ++i) {
        JointPart& part = search->parts[i];
        if (!part.walk) continue;
        const MemoryContext before = MemoryContextSwitchTo(part.s->context);
        part.items = part.walk->items;
        part.count = end_joint_walk(part.scan, part.s, part.walk);
        expect_rows(part.s, part.count);
        MemoryContextSwitchTo(before);
    }
}

// Whether the scans can be searched as one: begins `search`.
bool begin(const IndexScanDesc* scans, int count, double k, JointSearch* search) {
    // Another round may be needed for rows that wait, and for an index without lists.
    if (settings.iterative_scan == static_cast<int>(IterativeScan::off)) return false;
    const MetaPage* first = nullptr;  // of an index with lists
    for (int i = 0; i < count; ++i) {
        auto* s = static_cast<ScanState*>(scans[i]->opaque);
        if (s->conditions.never) continue;
        search->parts[search->part_count++] = {scans[i], s, nullptr, nullptr, nullptr, 0, 0};
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
        JointPart& part = search->parts[i];
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
    walk_lists_of_all(search);
    const JointOrder order = join_candidates(search);
    rank_jointly(search, order);
    pfree(order.items);
    bool all = true;
    for (int i = 0; i < search->part_count; ++i) {
        JointPart& part = search->parts[i];
        if (!part.walk) continue;
        const MemoryContext before = MemoryContextSwitchTo(part.s->context);
        end_first_part(part.scan, part.s, part.by_code, part.ranked, part.count);
        end_joint_round(part.scan, part.s);
        MemoryContextSwitchTo(before);
        all &= part.s->progress.finished;
    }
    // Rows that are not visible, or few entries in the lists: a scan goes on by itself.
    return has_enough(search) || all;
}

}  // namespace

JointResult search_jointly(const IndexScanDesc* scans, int count, double k, bool beyond) {
    JointSearch search = {};
    search.beyond = beyond;
    search.parts = static_cast<JointPart*>(palloc0(static_cast<Size>(count) * sizeof(JointPart)));
    JointResult result = JointResult::impossible;
    if (begin(scans, count, k, &search))
        result =
            begin_rounds(&search) && find_rows(&search) ? JointResult::found : JointResult::too_few;
    if (search.numbers) pfree(search.numbers);
    pfree(search.parts);
    return result;
}

}  // namespace pgwarp
