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

#include "extension/index/effort.h"
#include "extension/index/model.h"
#include "extension/scan/gather.h"
#include "extension/scan/joint_ranking.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

// Rows that wait beside the lists of an index are more than a part's share of LIMIT, maybe.
bool is_plain(const ScanState* s) {
    return !s->exact.wanted && s->pending.done && s->lists.table && s->goal.threshold > 0 &&
           s->conditions.count == 0 && s->goal.filtered == 0 && !s->bound.given && !refines(s) &&
           s->audited.k == 0 && settings.candidates == 0;
}

// --- lists

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
        JointPart& part = search->parts[i];
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
        JointPart& part = search->parts[i];
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
        part.items = part.walk->items;
        part.count = end_steps(part.s, part.walk);
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
        search->parts[search->part_count++] = {scans[i], s, nullptr, nullptr, 0, 0, no_floor};
        if (search->parts[0].s->meta.metric != s->meta.metric) return false;
        if (s->meta.lists == 0) continue;
        if (!is_plain(s) || (first && !has_like_codes(*first, s->meta))) return false;
        first = &s->meta;
    }
    if (!first) return false;
    choose_limits(search, static_cast<Size>(k), nullptr);
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
    first_step(search);
    second_step(search);
    const JointOrder order = join_candidates(*search);
    const double kth = rank_jointly(search, order);
    pfree(order.items);
    bool all = true;
    for (int i = 0; i < search->part_count; ++i) {
        JointPart& part = search->parts[i];
        if (!part.walk) continue;
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
