// The recall curve: which efforts to measure, and what all queries together say of them. See
// query.cpp for a single query.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "extension/curve/curve.h"
#include "extension/curve/places.h"
#include "extension/curve/walk.h"

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
    while (steps < RecallCurve::max_steps) {
        const uint32 here = std::min(lists, static_cast<uint32>(std::llround(next)));
        if (steps == 0 || here > probes[steps - 1]) probes[steps++] = here;
        if (here == lists) break;
        next *= ratio;
    }
    return steps;
}

// The list ranks of the trial queries' neighbors, sorted.
struct TrialRanks {
    uint32* ranks;
    uint32 count;

    // The rank that this share of them does not exceed.
    uint32 at(double share) const { return ranks[static_cast<uint32>(share * (count - 1))]; }
};
struct Trials {
    TrialRanks all;
    TrialRanks nearest;  // of each query, those that all queries have
};

Trials rank_trials(const CurveLists& lists, const CurveQuery* queries, uint32 count,
                   MemoryContext context) {
    const auto alloc = [count](uint32 of_query) {
        return static_cast<uint32*>(palloc((Size{count} + 1) * of_query * sizeof(uint32)));
    };
    Trials trials = {{alloc(most_curve_neighbors), 0}, {alloc(curve_neighbors), 0}};
    for (uint32 i = 0; i < count; ++i) {
        const MemoryContext before = MemoryContextSwitchTo(context);
        uint32* ranks = trials.all.ranks + trials.all.count;
        const uint32 found = rank_neighbor_lists(lists, queries[i], ranks);
        const uint32 near = std::min(found, curve_neighbors);
        std::copy_n(ranks, near, trials.nearest.ranks + trials.nearest.count);
        trials.all.count += found;
        trials.nearest.count += near;
        MemoryContextSwitchTo(before);
        MemoryContextReset(context);
    }
    for (const TrialRanks& ranks : {trials.all, trials.nearest})
        std::sort(ranks.ranks, ranks.ranks + ranks.count);
    return trials;
}

// The median of the trial queries.
float usual_nearest(const CurveLists& lists, const CurveQuery* queries, uint32 count,
                    MemoryContext context) {
    float nearest[curve_trial_queries];
    const uint32 trials = std::min(count, curve_trial_queries);
    if (trials == 0) return 0;
    for (uint32 i = 0; i < trials; ++i) {
        const MemoryContext before = MemoryContextSwitchTo(context);
        nearest[i] = nearest_list(lists, queries[i]);
        MemoryContextSwitchTo(before);
        MemoryContextReset(context);
    }
    std::nth_element(nearest, nearest + trials / 2, nearest + trials);
    return nearest[trials / 2];
}

// The trial queries show with how many probes nearly all neighbors are found. The grid ends one
// step beyond, or earlier, where that is too much work, but not before most are found. Where it is
// little work, all codes of all lists are looked up.
void cut_probe_grid(const CurveLists& lists, const CurveQuery* queries, uint32 count, uint32 wide,
                    MemoryContext context, CurveGrid* grid) {
    const MetaPage& meta = lists.meta;
    constexpr double nearly_all = 0.998;
    constexpr double most = 0.985;
    // Bytes of codes: a small part of a second of one processor.
    constexpr double little_work = 0x1p26;
    // Entries: half a second or so.
    constexpr double much_to_look_for = 0x1p29;
    const auto steps_beyond = [grid](uint32 last) {
        uint32 steps = 0;
        while (steps < grid->steps && grid->probes[steps] <= last) ++steps;
        return std::min(grid->steps, steps + 2);
    };
    const auto entries = [&](uint32 steps) {
        return static_cast<double>(measured_rows(meta)) / meta.lists * grid->probes[steps - 1] *
               count;
    };
    grid->all_codes = entries(grid->steps) * meta.m <= little_work;
    if (grid->all_codes) return;
    const Trials trials =
        rank_trials(lists, queries, std::min(count, curve_trial_queries), context);
    if (trials.all.count > 0) {
        const TrialRanks& ranks = wide < count ? trials.nearest : trials.all;
        const uint32 least = steps_beyond(ranks.at(most));
        grid->steps = std::max(steps_beyond(trials.all.at(nearly_all)), least);
        while (grid->steps > least && entries(grid->steps) > much_to_look_for) --grid->steps;
    }
    pfree(trials.all.ranks);
    pfree(trials.nearest.ranks);
}

}  // namespace

void add_tally(const CurveTally& tally, CurveTally* sum) {
    // A tally consists of doubles only.
    const auto* from = reinterpret_cast<const double*>(&tally);
    auto* to = reinterpret_cast<double*>(sum);
    for (Size i = 0; i < sizeof(CurveTally) / sizeof(double); ++i) to[i] += from[i];
}

uint32 count_wide(const CurveQuery* queries, uint32 count) {
    uint32 wide = 0;
    while (wide < count && queries[wide].room == most_curve_neighbors) ++wide;
    return wide;
}

CurveGrid begin_curve(const CurveLists& lists, const CurveQuery* queries, uint32 count,
                      uint32 wide) {
    CurveGrid grid = {};
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq curve", ALLOCSET_DEFAULT_SIZES);
    grid.steps = fill_probe_grid(lists.meta.lists, grid.probes);
    grid.nearest = usual_nearest(lists, queries, count, context);
    // The first ones, so that no long query becomes a straggler.
    constexpr uint32 whole_queries = 64;
    grid.whole_queries = whole_queries;
    cut_probe_grid(lists, queries, count, wide, context, &grid);
    MemoryContextDelete(context);
    return grid;
}

namespace {

uint16 stored(double recall) {
    return static_cast<uint16>(std::floor(65535 * std::clamp(recall, 0.0, 1.0)));
}

void fill_steps(const CurveGrid& grid, const CurveCounts& counts, RecallCurve* curve) {
    for (uint32 step = 0; step < grid.steps; ++step) {
        curve->scanned[step] =
            static_cast<float>(counts.scanned[step] / std::max(counts.walks, 1.0));
        for (int k = 0; k < RecallCurve::ks; ++k)
            for (int f = 0; f < RecallCurve::factors && counts.wanted[k] > 0; ++f)
                curve->recall[k][step][f] = stored(counts.hits[k][step][f] / counts.wanted[k]);
    }
}

// How much less the queries differ than if each found all of its neighbors or none.
float measured_error(const CurveCounts& counts, uint32 steps, int k) {
    constexpr double least = 0.8;
    constexpr double most = 0.995;
    double variance = 0;
    double alternatives = 0;
    for (uint32 step = 0; step < steps; ++step)
        for (int f = 0; f < RecallCurve::factors; ++f) {
            const double recall = counts.hits[k][step][f] / counts.wanted[k];
            if (recall < least || recall > most) continue;
            variance +=
                std::max(0.0, counts.squares[k][step][f] / counts.queries[k] - recall * recall);
            alternatives += recall * (1 - recall);
        }
    if (alternatives == 0) return RecallCurve::unknown_error;
    return static_cast<float>(std::clamp(std::sqrt(variance / alternatives), 0.3, 1.0));
}

// This share of the queries may walk fewer lists than they would take. The measured recall is then
// slightly below the real one.
constexpr double few_cut = 0.1;

// One threshold of those that were tried, for one k.
struct Tried {
    double lists, scanned;
    double recall[RecallCurve::factors];
    bool complete;  // few queries would have taken more lists than were walked
};

Tried tried_at(const CurveCounts& counts, int k, int t) {
    Tried tried = {};
    tried.lists = counts.query_lists[k][t] / counts.queries[k];
    tried.scanned = counts.query_scanned[k][t] / counts.queries[k];
    for (int f = 0; f < RecallCurve::factors; ++f)
        tried.recall[f] = counts.query_hits[k][t][f] / counts.wanted[k];
    tried.complete = counts.cut[k][t] <= few_cut * counts.queries[k];
    return tried;
}

// The tried thresholds where recall grows from about this to nearly all, for one k.
struct GrowingPart {
    int count;
    Tried tried[tried_thresholds];
    double threshold[tried_thresholds];
};
void find_growing_part(const CurveCounts& counts, int k, GrowingPart* part) {
    constexpr double least = 0.5;
    constexpr double nearly_all = 0.9995;
    constexpr int last_factor = RecallCurve::factors - 1;
    part->count = 0;
    for (int t = 0; t < tried_thresholds; ++t) {
        const Tried tried = tried_at(counts, k, t);
        const bool first = part->count == 0;
        const Tried* last = first ? nullptr : &part->tried[part->count - 1];
        if (!first && (!tried.complete || last->recall[last_factor] >= nearly_all)) break;
        if (!first && tried.lists <= 1.02 * last->lists) continue;
        if (tried.recall[last_factor] < least && t + 1 < tried_thresholds) continue;
        part->threshold[part->count] = tried_threshold(t);
        part->tried[part->count++] = tried;
    }
}

// Leaves as many as the curve has steps: of three in a row, the middle one goes where the misses of
// the others differ least.
void thin_out(GrowingPart* part) {
    const auto missed = [part](int i) {
        return std::log(1 - std::min(part->tried[i].recall[RecallCurve::factors - 1], 0.9999));
    };
    while (part->count > RecallCurve::max_steps) {
        int least = 1;
        for (int i = 1; i + 1 < part->count; ++i)
            if (missed(i - 1) - missed(i + 1) < missed(least - 1) - missed(least + 1)) least = i;
        std::copy(part->tried + least + 1, part->tried + part->count, part->tried + least);
        std::copy(part->threshold + least + 1, part->threshold + part->count,
                  part->threshold + least);
        --part->count;
    }
}

// The curve's steps are the same for all k, so a k with fewer repeats its last one.
void fill_by_query(const CurveCounts& counts, RecallCurve* curve) {
    auto* part = static_cast<GrowingPart*>(palloc(sizeof(GrowingPart)));
    uint32 used[RecallCurve::ks] = {};
    for (int k = 0; k < RecallCurve::ks; ++k) {
        if (curve->queries[k] == 0) continue;
        find_growing_part(counts, k, part);
        thin_out(part);
        used[k] = static_cast<uint32>(part->count);
        for (uint32 step = 0; step < used[k]; ++step) {
            const Tried& tried = part->tried[step];
            curve->threshold[k][step] = static_cast<float>(part->threshold[step]);
            curve->query_probes[k][step] = static_cast<float>(tried.lists);
            curve->query_scanned[k][step] = static_cast<float>(tried.scanned);
            for (int f = 0; f < RecallCurve::factors; ++f)
                curve->query_recall[k][step][f] = stored(tried.recall[f]);
        }
        curve->by_query_steps = std::max(curve->by_query_steps, used[k]);
    }
    pfree(part);
    for (int k = 0; k < RecallCurve::ks; ++k)
        for (uint32 step = std::max(used[k], 1u); step < curve->by_query_steps; ++step) {
            curve->threshold[k][step] = curve->threshold[k][step - 1];
            curve->query_probes[k][step] = curve->query_probes[k][step - 1];
            curve->query_scanned[k][step] = curve->query_scanned[k][step - 1];
            std::copy_n(curve->query_recall[k][step - 1], RecallCurve::factors,
                        curve->query_recall[k][step]);
        }
}

// The error of the lower end of a bin.
double error_of_bin(double bin) {
    const double from_zero = bin - error_bins_of_sign;
    const auto size = [](double bins) { return least_error * std::exp2(error_octaves * bins); };
    if (from_zero < 0) return -size(-from_zero);
    return from_zero < 1 ? from_zero * least_error : size(from_zero - 1);
}

// The value that this share of the counted ones exceeds.
double exceeded_by(const double* counts, double share) {
    double left = std::accumulate(counts, counts + error_bins, 0.0) * share;
    int bin = error_bins - 1;
    while (bin > 0 && counts[bin] < left) left -= counts[bin--];
    const double part = counts[bin] > 0 ? left / counts[bin] : 0;
    return error_of_bin(bin + 1 - std::min(part, 1.0));
}

// Octaves with few neighbors count together with the next nearer ones.
CodeErrors measured_errors(const CurveGrid& grid, const CurveTally& tally) {
    const auto sum = [](const double* counts) {
        return std::accumulate(counts, counts + error_bins, 0.0);
    };
    double all = 0;
    for (const auto& counts : tally.errors) all += sum(counts);
    if (all == 0) return {};
    // A target of 0.99 asks for the error that three of 1,000 neighbors exceed.
    const double enough = std::min(1000.0, all);
    CodeErrors errors = {};
    double counts[error_bins] = {};
    int measured = 0;
    for (int octave = distance_octaves - 1; octave >= 0; --octave) {
        for (int bin = 0; bin < error_bins; ++bin) counts[bin] += tally.errors[octave][bin];
        // The last entry counts all nearer octaves together.
        if (measured == CodeErrors::octaves - 1 && octave > 0) continue;
        const bool many = sum(counts) >= enough;
        if (measured == 0 && !many) continue;
        if (measured == 0)
            errors.farthest =
                grid.nearest * static_cast<float>(std::exp2(octave + 0.5 - usual_octave));
        float* beyond = errors.beyond[measured];
        if (many) {
            for (int i = 0; i < CodeErrors::shares; ++i)
                beyond[i] = static_cast<float>(exceeded_by(counts, CodeErrors::share(i)));
            std::fill_n(counts, error_bins, 0.0);
        } else {
            std::copy_n(errors.beyond[measured - 1], CodeErrors::shares, beyond);
        }
        ++measured;
    }
    for (; measured > 0 && measured < CodeErrors::octaves; ++measured)
        std::copy_n(errors.beyond[measured - 1], CodeErrors::shares, errors.beyond[measured]);
    return errors;
}

// The share of the rows that may be taken for queries unlike rows, by each of two signs.
constexpr double few_rows = 0.05;

// The threshold with which rows without their own list surely find nearly all that they want, times
// the share that they miss.
float outside_threshold(const OutsideCounts& counts) {
    // Where nearly all are found, few misses say little of the threshold.
    constexpr double most = 0.95;
    double found = 0;
    double before = 0;  // recall
    for (int t = 0; t < tried_thresholds && counts.queries > 0; ++t) {
        if (counts.cut[t] > few_cut * counts.queries) break;
        const double measured = counts.hits[t] / counts.queries;
        const double error = std::sqrt(measured * (1 - measured) / counts.queries);
        const double recall = measured - error;
        const bool enough = recall >= most;
        const double part = enough && t > 0 ? (most - before) / (recall - before) : 1;
        const double threshold = std::exp(std::log(tried_threshold(t - 1)) * (1 - part) +
                                          std::log(tried_threshold(t)) * part);
        found = threshold * std::max(1 - recall, 1 - most);
        if (enough) break;
        before = recall;
    }
    return static_cast<float>(found);
}

// Of the first queries, and of the others where hardly any was skipped: a row that has all of its
// neighbors in its own list is unlike one that has not.
OutsideCounts outside_counts(const CurveTally& tally, int k) {
    constexpr double few_skipped = 0.05;
    OutsideCounts counts = tally.whole_outside[k];
    const OutsideCounts& others = tally.outside[k];
    if (others.skipped > few_skipped * (others.queries + others.skipped)) return counts;
    for (int t = 0; t < tried_thresholds; ++t) {
        counts.hits[t] += others.hits[t];
        counts.cut[t] += others.cut[t];
    }
    counts.queries += others.queries;
    return counts;
}

UsualQueries measured_usual(const CurveGrid& grid, const CurveTally& tally) {
    UsualQueries usual = {};
    usual.nearest = grid.nearest;
    for (int k = 0; k < RecallCurve::ks; ++k)
        usual.radius[k] = tally.all.wanted[k] > 0
                              ? static_cast<float>(exceeded_by(tally.radius[k], few_rows))
                              : std::numeric_limits<float>::infinity();
    for (int k = 0; k < outside_ks; ++k)
        usual.outside = std::max(usual.outside, outside_threshold(outside_counts(tally, k)));
    return usual;
}

UsualShares measured_shares(const CurveTally& tally) {
    UsualShares shares = {};
    for (int k = 0; k < RecallCurve::ks; ++k)
        shares.of_radius[k] =
            tally.all.wanted[k] > 0
                ? static_cast<float>(exceeded_by(tally.share_of_radius[k], few_rows))
                : std::numeric_limits<float>::infinity();
    return shares;
}

}  // namespace

MeasuredCurve end_curve(const CurveGrid& grid, const CurveTally& tally) {
    MeasuredCurve measured = {};
    RecallCurve& curve = measured.curve;
    curve.steps = grid.steps;
    std::copy_n(grid.probes, grid.steps, curve.probes);
    if (tally.all.wanted[0] == 0) return measured;
    measured.errors = measured_errors(grid, tally);
    measured.usual = measured_usual(grid, tally);
    measured.usual_shares = measured_shares(tally);
    const CurveEffort& effort = tally.effort;
    ereport(DEBUG1,
            (errmsg_internal("%.0f queries of the curve to %u probes: %.3f s to rank "
                             "lists, %.3f s to place neighbors, %.3f s to look up %.0f codes, "
                             "%.3f s to count, of all processes together",
                             tally.all.walks, grid.probes[grid.steps - 1], effort.ranking,
                             effort.placing, effort.scanning, effort.entries, effort.counting)));
    ereport(DEBUG1,
            (errmsg_internal("nearest list at %g, radius for 10 rows %g, nearest list at %g of it",
                             measured.usual.nearest, measured.usual.radius[1],
                             measured.usual_shares.of_radius[1])));
    for (int k = 0; k < outside_ks; ++k) {
        const OutsideCounts counts = outside_counts(tally, k);
        ereport(DEBUG1, (errmsg_internal(
                            "k = %u: threshold of %.0f queries without their own list %g over "
                            "the share that is missed",
                            RecallCurve::k_values[k], counts.queries, outside_threshold(counts))));
    }
    for (int k = 0; k < RecallCurve::ks; ++k) {
        if (tally.all.wanted[k] == 0) continue;
        curve.queries[k] = static_cast<uint32>(tally.all.queries[k]);
        curve.error[k] = measured_error(tally.all, grid.steps, k);
    }
    fill_steps(grid, tally.all, &curve);
    fill_by_query(tally.all, &curve);
    for (int k = 0; k < RecallCurve::ks; ++k)
        for (uint32 step = 0; step < curve.by_query_steps && curve.queries[k] > 0; ++step)
            ereport(DEBUG2,
                    (errmsg_internal("k = %u, threshold %.3g: %.1f lists, %.0f entries, "
                                     "recall %.4f with 4 candidates per row, %.4f with all",
                                     RecallCurve::k_values[k], curve.threshold[k][step],
                                     curve.query_probes[k][step], curve.query_scanned[k][step],
                                     curve.query_recall[k][step][5] / 65535.0,
                                     curve.query_recall[k][step][13] / 65535.0)));
    return measured;
}

float largest_norm_of(const MetaPage& meta, const CurveQuery* queries, uint32 count) {
    if (has_norms(meta.metric)) return 0;
    // Rows that are inserted later may have larger ones.
    constexpr double margin = 1.1;
    double largest = 0;
    for (uint32 i = 0; i < count; ++i) {
        double squares = 0;
        for (uint32 d = 0; d < meta.code_dims; ++d)
            squares += double{queries[i].vector[d]} * queries[i].vector[d];
        const double norm = std::sqrt(squares);
        if (queries[i].self != 0) largest = std::max(largest, norm);
        // The distance of the nearest is the negative product.
        if (norm > 0 && queries[i].room > 0 && queries[i].neighbors[0].id != 0)
            largest = std::max(largest, -double{queries[i].neighbors[0].distance} / norm);
    }
    return static_cast<float>(margin * largest);
}

MeasuredCurve measure_curve(Relation index, const MetaPage& meta, const CurveQuery* queries,
                            uint32 count) {
    Size neighbors = 0;
    for (uint32 i = 0; i < count; ++i) neighbors += queries[i].room;
    void* memory =
        MemoryContextAllocHuge(CurrentMemoryContext, NeighborPlaces::bytes(neighbors, meta.lists));
    NeighborPlaces places(memory, neighbors, meta.lists);
    places.clear();
    for (uint32 i = 0; i < count; ++i) places.want(queries[i].neighbors, queries[i].room);
    places.look_through(index, meta, 0, meta.lists);
    const CurveLists lists = {index, meta, places};
    const CurveGrid grid = begin_curve(lists, queries, count, count_wide(queries, count));
    auto* tally = static_cast<CurveTally*>(palloc0(sizeof(CurveTally)));
    for (uint32 i = 0; i < count; ++i) {
        CHECK_FOR_INTERRUPTS();
        tally_query(lists, grid, queries[i], i, tally);
    }
    const MeasuredCurve measured = end_curve(grid, *tally);
    pfree(tally);
    pfree(memory);
    return measured;
}

}  // namespace pgwarp
