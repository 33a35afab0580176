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

void choose_limits(JointSearch* search, Size k, const ScanCosts* costs) {
    const auto effort_for = [costs](const MetaPage& meta, uint32 rows) {
        return choose_effort(meta, rows, costs ? *costs : cpu_costs(meta), ByQuery::yes);
    };
    const MetaPage* largest = nullptr;
    for (int i = 0; i < search->part_count; ++i) {
        const MetaPage& meta = search->parts[i].s->meta;
        if (meta.lists == 0) continue;
        search->rows += static_cast<double>(meta.rows_at_build);
        if (!largest || meta.rows_at_build > largest->rows_at_build) largest = &meta;
    }
    search->k = k;
    const Effort effort = effort_for(*largest, static_cast<uint32>(k));
    // An index of fewer rows needs fewer candidates, as its rows are farther apart: those of all
    // parts together tell how many this many rows need. The k nearest need no more than these.
    constexpr double most_more = 64;
    double candidates = 0;
    for (int i = 0; i < search->part_count; ++i) {
        const JointPart& part = search->parts[i];
        if (part.s->meta.lists > 0)
            candidates += effort_for(part.s->meta, rows_by_chance(*search, part)).candidates;
    }
    candidates = std::min(candidates, effort.candidates + most_more);
    search->least = std::max({Size{effort.candidates}, k, static_cast<Size>(candidates)});
    search->margin = effort.margin;
    search->wider_k = effort.wider_k;
    search->most =
        search->margin > 0 ? most_ranked_of(search->least, false, search->wider_k) : search->least;
    search->most = std::max({search->most, search->least, Size{search->wider_k}});
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
    Candidate* items = part->items + part->ranked;
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
            const JointPart& part = search.parts[i];
            for (Size c = 0; c < counts[i]; ++c)
                prefetch_row(reader_of(part.s), number_tid(part.items[part.ranked + c].id), stage);
        }
    }
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

JointOrder join_candidates(const JointSearch& search) {
    Size count = 0;
    for (int i = 0; i < search.part_count; ++i) count += search.parts[i].count;
    auto* all = static_cast<JointCandidate*>(palloc(Max(count, Size{1}) * sizeof(JointCandidate)));
    Size at = 0;
    for (int i = 0; i < search.part_count; ++i)
        for (Size c = 0; c < search.parts[i].count; ++c)
            all[at++] = {search.parts[i].items[c].distance, i};
    std::sort(all, all + count);
    return {all, count,
            count_worth_ranking(count, search.least, search.k, search.margin,
                                [all](Size i) { return all[i].distance; })};
}

double rank_jointly(JointSearch* search, const JointOrder& order) {
    // Fewer rows tell too little of the errors of codes.
    constexpr Size few = 32;
    const JointCandidate* joined = order.items;
    auto* counts = static_cast<Size*>(palloc(static_cast<Size>(search->part_count) * sizeof(Size)));
    const Size rows_before = count_rows(*search);
    Size ranked = 0;
    Size end = std::min(order.worth, std::max({search->k, few, order.worth / 4}));
    double kth = kth_distance(search);
    while (ranked < end) {
        std::fill_n(counts, search->part_count, 0);
        for (Size i = ranked; i < end; ++i) ++counts[joined[i].part];
        prefetch(*search, counts);
        for (int i = 0; i < search->part_count; ++i) rank_next(&search->parts[i], counts[i]);
        ranked = end;
        kth = kth_distance(search);
        const double last = last_worth_ranking(*search, kth);
        // Candidates whose rows are not visible are replaced by the next ones.
        const Size without_row = ranked - std::min(ranked, count_rows(*search) - rows_before);
        const Size count = std::min(order.count, order.worth + without_row);
        while (end < std::min(count, 2 * ranked) && !(joined[end].distance > last)) ++end;
    }
    pfree(counts);
    for (int i = 0; i < search->part_count && search->beyond; ++i)
        rank_beyond(&search->parts[i], kth);
    return kth;
}

}  // namespace pgwarp
