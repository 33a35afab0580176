#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/scan/joint_ranking.h"
#include "extension/index/tid.h"
#include "extension/util/disk_reads.h"

namespace pgwarp {

namespace {

constexpr double far = std::numeric_limits<double>::infinity();

}  // namespace

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

double share_of(const JointSearch& search, const JointPart& part) {
    return static_cast<double>(part.s->meta.rows_at_build) / std::max(search.rows, 1.0);
}

uint32 rows_by_chance(const JointSearch& search, const JointPart& part) {
    const double rows = std::round(share_of(search, part) * static_cast<double>(search.k));
    return static_cast<uint32>(std::max(rows, 1.0));
}

void choose_limits(JointSearch* search, Size k) {
    const ScanState* largest = nullptr;
    for (int i = 0; i < search->part_count; ++i) {
        const ScanState* s = search->parts[i].s;
        if (s->meta.lists == 0) continue;
        search->rows += static_cast<double>(s->meta.rows_at_build);
        if (!largest || s->meta.rows_at_build > largest->meta.rows_at_build) largest = s;
    }
    search->k = k;
    search->effort =
        choose_effort(largest->meta, static_cast<uint32>(k), checks_conditions(largest));
    search->most = std::max(kept_candidates(search->effort), k);
    search->plan.shift = code_shift(largest);
}

Size count_rows(const JointSearch& search) {
    Size rows = 0;
    for (int i = 0; i < search.part_count; ++i) rows += search.parts[i].s->round.count;
    return rows;
}

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

namespace {

// Ranks the part's next candidates.
void rank_next(JointPart* part, Size count) {
    if (count == 0) return;
    const MemoryContext before = MemoryContextSwitchTo(part->s->context);
    rank_candidates(part->scan, part->s, part->items + part->ranked, count);
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
            const JointPart& part = search.parts[i];
            for (Size c = 0; c < counts[i]; ++c)
                prefetch_row(reader_of(part.s), number_tid(part.items[part.ranked + c].id), stage);
        }
    }
}

// The Merge Append takes a row of each partition, and asks for the next one where that is among the
// nearest: another round, unless there is one beyond them.
void rank_beyond(JointPart* part, double kth) {
    const RoundRows& round = part->s->round;
    const auto has_row_beyond = [&] {
        return std::any_of(round.rows, round.rows + round.count,
                           [kth](const RankedRow& row) { return row.distance > kth; });
    };
    for (Size step = 1; part->ranked < part->count && !has_row_beyond(); step *= 2)
        rank_next(part, std::min(step, part->count - part->ranked));
}

}  // namespace

JointOrder join_candidates(JointSearch* search) {
    Size count = 0;
    for (int i = 0; i < search->part_count; ++i) count += search->parts[i].count;
    auto* all = static_cast<JointCandidate*>(palloc(Max(count, Size{1}) * sizeof(JointCandidate)));
    Size at = 0;
    for (int i = 0; i < search->part_count; ++i) {
        JointPart& part = search->parts[i];
        for (Size c = 0; c < part.count; ++c) all[at++] = {part.items[c].distance, i};
        if (part.by_code) pfree(part.by_code);
        part.by_code =
            static_cast<Candidate*>(palloc(Max(part.count, Size{1}) * sizeof(Candidate)));
        std::copy_n(part.items, part.count, part.by_code);
    }
    std::sort(all, all + count);
    const float shift = search->plan.shift;
    return {all, count,
            count_worth_ranking(count, search->k, search->effort, shift,
                                [all, shift](Size i) { return all[i].distance + shift; })};
}

bool has_enough(JointSearch* search) {
    if (count_rows(*search) < search->k) return false;
    // In one order, of all parts.
    const auto joined = [search](KnownDistances RoundRows::*which) {
        KnownDistances all = {};
        for (int i = 0; i < search->part_count; ++i)
            all.room += (search->parts[i].s->round.*which).count;
        all.items = static_cast<double*>(palloc(Max(all.room, Size{1}) * sizeof(double)));
        for (int i = 0; i < search->part_count; ++i) {
            const KnownDistances& part = search->parts[i].s->round.*which;
            std::copy_n(part.items, part.count, all.items + all.count);
            all.count += part.count;
        }
        std::sort(all.items, all.items + all.count);
        return all;
    };
    const KnownDistances visited = joined(&RoundRows::visited);
    const KnownDistances passing = joined(&RoundRows::passing);
    const double spread = even_spread(passing.items, std::min(search->k, passing.count),
                                      visited.items, visited.count);
    pfree(visited.items);
    pfree(passing.items);
    return spread <= tolerated_spread(static_cast<double>(search->k));
}

namespace {

// Whether rows were visited that are not wanted: those that are may be the last of the nearest.
bool any_dropped(const JointSearch& search) {
    return std::any_of(search.parts, search.parts + search.part_count, [](const JointPart& part) {
        return part.s->round.passing.count < part.s->round.visited.count;
    });
}

}  // namespace

double rank_jointly(JointSearch* search, const JointOrder& order) {
    const JointCandidate* joined = order.items;
    auto* counts = static_cast<Size*>(palloc(static_cast<Size>(search->part_count) * sizeof(Size)));
    Size ranked = 0;
    Size end = std::min(order.count, search->k);
    double kth = kth_distance(search);
    const float shift = search->plan.shift;
    const double kth_code = end > 0 ? joined[end - 1].distance + shift : 0;
    const Metric metric = search->parts[0].s->meta.metric;
    while (ranked < end) {
        std::fill_n(counts, search->part_count, 0);
        for (Size i = ranked; i < end; ++i) ++counts[joined[i].part];
        prefetch(*search, counts);
        for (int i = 0; i < search->part_count; ++i) rank_next(&search->parts[i], counts[i]);
        ranked = end;
        kth = kth_distance(search);
        const CodeReach reach(search->effort, kth_code, shift, any_dropped(*search));
        const double last = std::isinf(kth) || !search->effort.by_error
                                ? far
                                : reach.by_row(code_units(metric, kth, shift)) - shift;
        end = next_portion(ranked, order.count, search->k, last,
                           [joined](Size i) { return joined[i].distance; });
    }
    pfree(counts);
    for (int i = 0; i < search->part_count && search->beyond; ++i)
        rank_beyond(&search->parts[i], kth);
    return kth;
}

}  // namespace pgwarp
