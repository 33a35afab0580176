#include <algorithm>
#include <cmath>

#include "extension/index/effort.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

// In look-ups of this CPU. An entry takes m; ranking a row takes a visit to the table, and for a
// long vector one to TOAST.
double effort_cost(const MetaPage& meta, const ScanCosts& costs, double probes, double scanned,
                   double candidates) {
    constexpr double row = 4000;
    constexpr double toasted_row = 20000;
    const bool toasted = meta.dims * sizeof(float) > 2000;
    return probes * costs.probe + scanned * meta.m * costs.look_up +
           candidates * (toasted ? toasted_row : row);
}

// The curve was measured with few queries: aiming a little above the target keeps the real recall
// from falling short of it. If the neighbors of a query were always found or missed together, the
// standard error would be sqrt(p (1 - p) / queries). Mostly, but not always, they are: three
// quarters of that are added.
double safe_target(double target, uint32 queries) {
    return std::min(1.0, target + 0.75 * std::sqrt(target * (1 - target) / queries));
}

Effort effort_without_curve(const MetaPage& meta, uint32 k) {
    return {std::max(1u, meta.lists / 8), std::max(100u, 10 * k)};
}

}  // namespace

double curve_recall(const RecallCurve& curve, uint32 k, uint32 step, uint32 factor) {
    const double low = curve.recall[0][step][factor] / 65535.0;
    const double high = curve.recall[1][step][factor] / 65535.0;
    // Every scan calls this for many steps, mostly with k = 10: saves the logarithm.
    if (k <= 10) return low;
    if (k >= 100) return high;
    return low + (high - low) * (std::log10(static_cast<double>(k)) - 1);
}

namespace {

constexpr uint32 least_measured = RecallCurve::k_values[0];
constexpr uint32 most_measured = RecallCurve::k_values[RecallCurve::ks - 1];

// The fewest lists that held the share of the k nearest rows that the target asks for, with as many
// candidates as were measured, so that only the lists matter. k is within what was measured.
double measured_lists(const MetaPage& meta, uint32 k) {
    const RecallCurve& curve = meta.curve;
    const double target = safe_target(settings.target_recall, curve.queries);
    for (uint32 step = 0; step < curve.probe_steps; ++step)
        if (curve_recall(curve, k, step, RecallCurve::factors - 1) >= target)
            return curve.probes[step];
    return meta.lists;
}

// How many times as many lists k rows need as the most rows that were measured: lists grow with a
// power of k, which is that between the measured ones.
double growth_beyond_measured(const MetaPage& meta, double k) {
    constexpr double least_power = 0.15;
    if (k <= most_measured || meta.curve.queries == 0) return 1;
    const double power =
        std::log10(measured_lists(meta, most_measured) / measured_lists(meta, least_measured));
    return std::pow(k / most_measured, std::clamp(power, least_power, 1.0));
}

}  // namespace

double lists_for(const MetaPage& meta, double k) {
    if (meta.curve.queries == 0) return meta.lists;
    const auto measured = static_cast<uint32>(std::clamp<double>(k, least_measured, most_measured));
    return std::min<double>(meta.lists,
                            measured_lists(meta, measured) * growth_beyond_measured(meta, k));
}

double expected_lists(const MetaPage& meta, double k) {
    const double all = meta.lists;
    const double rows = static_cast<double>(meta.rows_at_build);
    if (meta.curve.queries == 0 || k >= rows) return all;
    if (k <= most_measured) return lists_for(meta, k);
    // Between two points, lists grow with a power of k. The last point is all rows, in all lists.
    double from = most_measured;
    double lists = lists_for(meta, from);
    for (int i = 0; i <= ListSpread::steps; ++i) {
        const bool measured = i < ListSpread::steps && meta.spread.lists[i] > 0;
        const double to = measured ? ListSpread::k_values[i] : rows;
        const double here = measured ? std::clamp<double>(meta.spread.lists[i], lists, all) : all;
        if (k <= to || !measured)
            return lists * std::pow(here / lists, std::log(k / from) / std::log(to / from));
        from = to;
        lists = here;
    }
    return all;
}

double ranked_for_filter(const MetaPage& meta, double k, double share) {
    // Where few rows pass, those that do lie far apart: codes err less, compared with that, and
    // fewer of them need be ranked for one that is wanted.
    const auto spread =
        static_cast<uint32>(std::clamp(k / share, 10.0, static_cast<double>(1 << 25)));
    const double ratio = static_cast<double>(choose_effort(meta, spread).candidates) / spread;
    return std::ceil(std::max(ratio, 1.0) * k);
}

double lists_for_filter(const MetaPage& meta, double nearest) {
    // Both the share and the curve, which ends at fewer rows, are estimates.
    constexpr double margin = 1.5;
    const double lists = std::max(margin * lists_for(meta, nearest), expected_lists(meta, nearest));
    return std::min<double>(meta.lists, std::ceil(lists));
}

Effort choose_effort(const MetaPage& meta, uint32 k, const ScanCosts& costs) {
    Effort effort = effort_without_curve(meta, k);
    const RecallCurve& curve = meta.curve;
    if (curve.queries > 0) {
        const double target = safe_target(settings.target_recall, curve.queries);
        const double wanted = std::max(k, 10u);
        double best_cost = 0;
        double best_recall = -1;
        bool reached = false;
        for (uint32 f = 0; f < RecallCurve::factors; ++f)
            for (uint32 step = 0; step < curve.probe_steps; ++step) {
                const double recall = curve_recall(curve, k, step, f);
                const double candidates = RecallCurve::factor_values[f] * wanted;
                double probes = curve.probes[step];
                double scanned = curve.scanned[step];
                if (recall >= target && step > 0) {
                    // Recall is interpolated linearly between two steps.
                    const double before = curve_recall(curve, k, step - 1, f);
                    const double part =
                        recall > before
                            ? std::clamp((target - before) / (recall - before), 0.0, 1.0)
                            : 1.0;
                    probes = curve.probes[step - 1] + part * (probes - curve.probes[step - 1]);
                    scanned = curve.scanned[step - 1] + part * (scanned - curve.scanned[step - 1]);
                }
                const double cost = effort_cost(meta, costs, probes, scanned, candidates);
                const bool better = recall >= target ? !reached || cost < best_cost
                                                     : !reached && recall > best_recall;
                if (better) {
                    reached = recall >= target;
                    best_cost = cost;
                    best_recall = recall;
                    effort = {static_cast<uint32>(std::ceil(probes)),
                              static_cast<uint32>(std::ceil(candidates))};
                }
                if (recall >= target) break;  // more probes only cost more
            }
    }
    effort.probes = static_cast<uint32>(
        std::min<double>(meta.lists, effort.probes * growth_beyond_measured(meta, k)));
    if (settings.target_recall >= 1) effort.probes = meta.lists;
    if (settings.probes > 0) effort.probes = static_cast<uint32>(settings.probes);
    if (settings.candidates > 0) effort.candidates = static_cast<uint32>(settings.candidates);
    effort.probes = std::clamp(effort.probes, 1u, std::max(1u, meta.lists));
    effort.candidates = std::max(effort.candidates, k);
    return effort;
}

}  // namespace pgwarp
