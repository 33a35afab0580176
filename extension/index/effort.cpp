#include <algorithm>
#include <cmath>

#include "kernels/recall_estimate.h"
#include "extension/index/effort.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

// Of what the target allows to miss, the share that codes may miss.
constexpr double share_of_codes = 0.3;

double codes_may_miss(double target) {
    return share_of_codes * (1 - target);
}

// The last k that was measured.
int last_k(const RecallCurve& curve) {
    int last = RecallCurve::ks - 1;
    while (last > 0 && curve.queries[last] == 0) --last;
    return last;
}

// The lists for k rows: for more than were measured, they grow with a power of these.
template <class Lists>
double beyond_measured(const MetaPage& meta, double k, Lists lists) {
    const double most = RecallCurve::k_values[last_k(meta.curve)];
    if (k <= most || most <= 1) return lists(std::max(std::min(k, most), 1.0));
    const double of_most = lists(most);
    const double power = std::log10(std::max(of_most / lists(most / 10), 1.0));
    return of_most * std::pow(k / most, std::clamp(power, 0.15, 1.0));
}

// What was measured for one k, or between two.
class MeasuredRecall {
  public:
    // `by_query`: by thresholds; else one number of lists for all.
    MeasuredRecall(const MetaPage& meta, double k, bool by_query)
        : meta_(meta), curve_(meta.curve), by_query_(by_query) {
        const int last = last_k(curve_);
        low_ = last;
        while (low_ > 0 && RecallCurve::k_values[low_] > k) --low_;
        high_ = std::min(low_ + 1, last);
        if (high_ == low_ || k <= RecallCurve::k_values[low_]) return;
        const double from = RecallCurve::k_values[low_];
        const double to = RecallCurve::k_values[high_];
        part_ = std::min(1.0, std::log(k / from) / std::log(to / from));
    }

    uint32 steps() const { return by_query_ ? curve_.by_query_steps : curve_.steps; }
    // With this number of candidates per wanted row; the last: with any number.
    double recall(uint32 step, uint32 factor = RecallCurve::factors - 1) const {
        return between([&](int k) { return measured(k, step, factor); });
    }
    // Less one standard error: five times in six, the recall is no lower.
    double sure_recall(uint32 step) const {
        return between([&](int k) { return lower_bound(k, measured(k, step, last_factor)); });
    }
    double error(uint32 step) const {
        return between([&](int k) { return standard_error(k, measured(k, step, last_factor)); });
    }
    double probes(uint32 step) const {
        if (!by_query_) return curve_.probes[step];
        return between([&](int k) { return double{curve_.query_probes[k][step]}; });
    }
    double threshold(uint32 step) const {
        if (!by_query_) return curve_.probes[step];
        return std::exp(
            between([&](int k) { return std::log(double{curve_.threshold[k][step]}); }));
    }
    // The radius that hardly any row exceeds, and the share of it that its nearest list is at.
    float usual_radius() const { return between_logs(meta_.usual.radius); }
    float usual_share() const { return between_logs(meta_.usual_shares.of_radius); }

  private:
    static constexpr uint32 last_factor = RecallCurve::factors - 1;
    template <class OfK>
    double between(OfK of_k) const {
        const double low = of_k(low_);
        return part_ == 0 ? low : low + (of_k(high_) - low) * part_;
    }
    float between_logs(const float* of_k) const {
        return static_cast<float>(
            std::exp(between([&](int k) { return std::log(std::max(of_k[k], least_radius)); })));
    }
    double measured(int k, uint32 step, uint32 factor) const {
        const uint16 recall =
            by_query_ ? curve_.query_recall[k][step][factor] : curve_.recall[k][step][factor];
        return recall / 65535.0;
    }
    // Wilson's bound, for a recall that may be near 1, where the standard error says too little.
    // What it adds to that is the less, the more neighbors each query has.
    double lower_bound(int k, double recall) const {
        const double error = standard_error(k, recall);
        const double one =
            curve_.error[k] * curve_.error[k] / curve_.queries[k] / RecallCurve::k_values[k];
        const double width = std::sqrt(error * error + one * one / 4);
        return (recall + one / 2 - width) / (1 + one);
    }
    double standard_error(int k, double recall) const {
        return curve_.error[k] * std::sqrt(recall * (1 - recall) / curve_.queries[k]);
    }

    const MetaPage& meta_;
    const RecallCurve& curve_;
    const bool by_query_;
    int low_, high_;
    double part_ = 0;
};

// Where on the curve an effort for lists is: a step, and the part of the way to the next one.
struct CurvePoint {
    uint32 step = 0;
    double part = 0;

    template <class At>
    double between(const MeasuredRecall& measured, At at) const {
        const double here = at(step);
        if (part == 0 || step + 1 >= measured.steps()) return here;
        return here + (at(step + 1) - here) * part;
    }
};

// The first point of the curve where a figure that grows with its steps reaches a value, or the
// last one.
template <class At>
CurvePoint find_point(const MeasuredRecall& measured, double value, At at) {
    for (uint32 step = 0; step < measured.steps(); ++step) {
        const double here = at(step);
        if (here < value) continue;
        if (step == 0) return {};
        const double before = at(step - 1);
        if (before >= value) return {step - 1, 0};
        return {step - 1, (value - before) / (here - before)};
    }
    return {measured.steps() - 1, 0};
}

// Thresholds grow as the share that may be missed shrinks; so they do behind the end of the curve.
double threshold_for(const MeasuredRecall& measured, const CurvePoint& point, double wanted) {
    const double threshold = std::exp(
        point.between(measured, [&](uint32 step) { return std::log(measured.threshold(step)); }));
    const double found =
        point.between(measured, [&](uint32 step) { return measured.sure_recall(step); });
    return threshold * std::max(1.0, (1 - found) / std::max(1 - wanted, 1e-6));
}

// Candidates per wanted row with which codes miss no more than that of what the lists have.
double candidate_factor(const MeasuredRecall& measured, const CurvePoint& point, double missed) {
    const auto recall = [&](uint32 factor) {
        return point.between(measured, [&](uint32 step) { return measured.recall(step, factor); });
    };
    const double wanted = recall(RecallCurve::factors - 1) * (1 - missed);
    uint32 factor = 0;
    while (factor + 2 < RecallCurve::factors && recall(factor) < wanted) ++factor;
    return RecallCurve::factor_values[factor];
}

Effort choose_by_curve(const MetaPage& meta, uint32 k, bool with_conditions) {
    const double target = std::min(aimed_recall(meta, k, with_conditions), 1 - 1e-6);
    const double missed = codes_may_miss(target);
    const MeasuredRecall measured(meta, k, true);
    const double wanted = target / (1 - missed);
    const CurvePoint point =
        find_point(measured, wanted, [&](uint32 step) { return measured.sure_recall(step); });
    Effort effort = {};
    effort.probes = static_cast<uint32>(
        std::ceil(point.between(measured, [&](uint32 step) { return measured.probes(step); })));
    effort.threshold = static_cast<float>(threshold_for(measured, point, wanted));
    effort.outside = {far_nearest(meta.usual.nearest), measured.usual_radius(),
                      measured.usual_share(),
                      static_cast<float>(meta.usual.outside / (1 - wanted))};
    effort.candidates = static_cast<uint32>(
        std::ceil(candidate_factor(measured, point, missed) * RecallCurve::wanted(k)));
    effort.by_error = true;
    effort.errors = meta.errors;
    effort.missed = static_cast<float>(missed);
    return effort;
}

Effort effort_without_curve(const MetaPage& meta, uint32 k) {
    return {std::max(1u, meta.lists / 8), std::max(100u, 10 * k), 0};
}

}  // namespace

bool has_curve(const MetaPage& meta) {
    return meta.curve.queries[0] > 0 && meta.curve.by_query_steps > 0 && meta.curve.steps > 0;
}

int learned_group(double k) {
    const auto measured = [](int group) {
        return static_cast<double>(RecallCurve::k_values[group]);
    };
    int group = 0;
    while (group + 1 < RecallCurve::ks && k * k >= measured(group) * measured(group + 1)) ++group;
    return group;
}

double aimed_recall(const MetaPage& meta, double k, bool with_conditions) {
    const float correction = meta.learned(with_conditions).correction[learned_group(k)];
    return corrected_recall(settings.target_recall, std::max(correction, 0.0f));
}

bool expected_recall(const MetaPage& meta, uint32 k, const Effort& effort, ExpectedRecall* result) {
    if (!has_curve(meta)) return false;
    const bool by_query = effort.threshold > 0;
    const MeasuredRecall measured(meta, k, by_query);
    const CurvePoint point = by_query
                                 ? find_point(measured, effort.threshold,
                                              [&](uint32 step) { return measured.threshold(step); })
                                 : find_point(measured, effort.probes,
                                              [&](uint32 step) { return measured.probes(step); });
    uint32 factor = RecallCurve::factors - 1;
    if (!effort.by_error) {
        const double wanted = RecallCurve::wanted(k);
        factor = 0;
        while (factor + 2 < RecallCurve::factors &&
               RecallCurve::factor_values[factor + 1] * wanted <= effort.candidates + 0.5)
            ++factor;
    }
    double recall =
        point.between(measured, [&](uint32 step) { return measured.recall(step, factor); });
    // All lists are taken: only codes miss rows.
    if (!by_query && effort.probes >= meta.lists && effort.by_error) recall = 1;
    if (effort.by_error) recall *= 1 - codes_may_miss(settings.target_recall);
    *result = {recall, 1.645 * measured.error(point.step)};
    return true;
}

uint32 lists_for_all(const MetaPage& meta, double k, bool with_conditions) {
    if (!has_curve(meta)) return effort_without_curve(meta, 1).probes;
    // Of half of all rows, some are nearly anywhere.
    if (2 * k >= static_cast<double>(measured_rows(meta))) return std::max(meta.lists, 1u);
    const double target = std::min(aimed_recall(meta, k, with_conditions), 1 - 1e-6);
    const auto lists = [&](double rows) {
        const MeasuredRecall measured(meta, rows, false);
        const CurvePoint point =
            find_point(measured, target / (1 - codes_may_miss(target)),
                       [&](uint32 step) { return measured.sure_recall(step); });
        return point.between(measured, [&](uint32 step) { return measured.probes(step); });
    };
    return static_cast<uint32>(
        std::clamp<double>(std::ceil(beyond_measured(meta, k, lists)), 1, meta.lists));
}

double expected_lists(const MetaPage& meta, double k, double share, bool with_conditions) {
    const double all = meta.lists;
    const double rows = static_cast<double>(std::max<uint64>(measured_rows(meta), 1));
    share = std::clamp(share, 1 / rows, 1.0);
    const double nearest = k / share;
    if (!has_curve(meta) || nearest >= rows) return all;
    const auto lists_for = [&](double wanted) {
        const Effort effort = choose_by_curve(meta, static_cast<uint32>(wanted), with_conditions);
        const MeasuredRecall measured(meta, wanted, true);
        // Few entries pass, so that the score grows slowly (kernels/list_plan.h).
        const double threshold = effort.threshold / share;
        const CurvePoint point =
            find_point(measured, threshold, [&](uint32 step) { return measured.threshold(step); });
        const double lists =
            point.between(measured, [&](uint32 step) { return measured.probes(step); });
        const double last = measured.threshold(measured.steps() - 1);
        // The score grows with the sixth power of squared distances, lists with the entries.
        return threshold > last ? lists * std::sqrt(threshold / last) : lists;
    };
    return std::min(all, beyond_measured(meta, nearest, lists_for));
}

namespace {

// How far the rows around a query are: by the radii of 1, 10, 100 and 1,000 of them, which grow
// with a power of their number between two, and beyond the last.
class UsualRadii {
  public:
    explicit UsualRadii(const MetaPage& meta)
        // Of inner products, for a query that is as long as the longest row.
        : unit_(has_norms(meta.metric) ? 1 : double{meta.largest_norm} * meta.largest_norm),
          radii_(meta.usual.radius),
          last_(last_k(meta.curve)) {}
    bool known() const { return radii_[last_] > 0; }
    // What the radii are shares of.
    double unit() const { return unit_; }
    double radius(double rows) const {
        int low = 0;
        while (low + 1 < last_ && RecallCurve::k_values[low + 1] < rows) ++low;
        return of(low) * std::pow(rows / RecallCurve::k_values[low], 1 / power(low));
    }
    double rows_within(double radius) const {
        int low = 0;
        while (low + 1 < last_ && of(low + 1) < radius) ++low;
        return RecallCurve::k_values[low] * std::pow(radius / of(low), power(low));
    }

  private:
    double of(int k) const { return std::max<double>(unit_ * radii_[k], least_radius); }
    double power(int low) const {
        constexpr double most = 100;
        if (low >= last_) return most;
        const double farther = std::max(of(low + 1) / of(low), 1.0);
        const double more =
            static_cast<double>(RecallCurve::k_values[low + 1]) / RecallCurve::k_values[low];
        return farther > 1 ? std::min(most, std::log(more) / std::log(farther)) : most;
    }

    double unit_;
    const float* radii_;
    int last_;
};

}  // namespace

double expected_candidates(const MetaPage& meta, double wanted, double nearest,
                           const Effort& effort) {
    const double least = std::max<double>(effort.candidates, nearest);
    const UsualRadii radii(meta);
    if (!effort.by_error || wanted >= nearest || !radii.known()) return least;
    // So many of the wanted rows stand for all.
    constexpr Size most = 8;
    double distances[most];
    const Size rows = std::clamp<Size>(static_cast<Size>(wanted), 1, most);
    for (Size i = 0; i < rows; ++i)
        distances[i] =
            radii.radius(nearest * static_cast<double>(i + 1) / static_cast<double>(rows));
    const double kth = distances[rows - 1];
    const CodeReach codes(effort, kth, static_cast<float>(radii.unit()));
    const double reach = codes.by_rows(rows, [&distances](Size i) { return distances[i]; });
    return std::max(least, radii.rows_within(reach));
}

Effort choose_effort(const MetaPage& meta, uint32 k, bool with_conditions) {
    Effort effort =
        has_curve(meta) ? choose_by_curve(meta, k, with_conditions) : effort_without_curve(meta, k);
    // Where the session sets an effort, no query decides on another.
    if (settings.target_recall >= 1) effort.probes = meta.lists;
    if (settings.probes > 0) effort.probes = static_cast<uint32>(settings.probes);
    if (settings.target_recall >= 1 || settings.probes > 0) effort.threshold = 0;
    if (settings.candidates > 0) {
        effort.candidates = static_cast<uint32>(settings.candidates);
        effort.by_error = false;
    }
    effort.probes = std::clamp(effort.probes, 1u, std::max(1u, meta.lists));
    effort.candidates = std::max(effort.candidates, k);
    return effort;
}

}  // namespace pgwarp
