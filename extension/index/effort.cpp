#include <algorithm>
#include <cmath>

#include "extension/index/effort.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

// In look-ups of this CPU. An entry takes m; ranking a row takes a visit to the table, and for a
// long vector one to TOAST. A refinement takes the lock of its page, and a cache line for 64
// dimensions.
double effort_cost(const MetaPage& meta, const ScanCosts& costs, double probes, double scanned,
                   double candidates, double wanted) {
    constexpr double row = 4000;
    constexpr double toasted_row = 20000;
    constexpr double refinement = 500;
    const bool toasted = lies_in_toast(meta);
    const double visits = costs.refines ? std::min(candidates, refined_visits(wanted)) : candidates;
    const double refined =
        costs.refines ? candidates * (refinement + meta.dims) * costs.refinement : 0;
    const double slower = candidates > fast_list_k ? costs.many_candidates : 1;
    return probes * costs.probe + scanned * meta.m * costs.look_up * slower +
           visits * (toasted ? toasted_row : row) + refined;
}

Effort effort_without_curve(const MetaPage& meta, uint32 k) {
    return {std::max(1u, meta.lists / 8), std::max(100u, 10 * k), 0};
}

// The last k that was measured.
int last_k(const RecallCurve& curve) {
    int last = RecallCurve::ks - 1;
    while (last > 0 && curve.queries[last] == 0) --last;
    return last;
}

// Recall at a step and a candidate factor for one k, as a curve's side has it.
class CurveSide {
  public:
    CurveSide(const MetaPage& meta, ByQuery by_query, uint32 k)
        : curve_(meta.curve),
          margins_(meta.margins),
          by_query_(by_query == ByQuery::yes),
          margin_(meta.curve_source == CurveSource::queries ? given_margin : rows_margin) {
        const int last = last_k(curve_);
        low_ = last;
        while (low_ > 0 && RecallCurve::k_values[low_] > k) --low_;
        high_ = std::min(low_ + 1, last);
        // Most searches want 10 rows: saves the logarithms.
        if (high_ == low_ || k <= RecallCurve::k_values[low_]) return;
        const double from = RecallCurve::k_values[low_];
        const double to = RecallCurve::k_values[high_];
        part_ = std::min(1.0, std::log(k / from) / std::log(to / from));
    }

    uint32 steps() const { return by_query_ ? curve_.by_query_steps : curve_.steps; }
    double recall(uint32 step, uint32 factor) const {
        return between([&](int k) { return measured(k, step, factor); });
    }
    // The recall that the measured one reaches surely, but for one case in twenty. Searches that
    // are like the queries given to ivfpq_learn() get what was measured, so that one case in six
    // falls short, by little; rows are only a guess at what searches ask for.
    static constexpr double rows_margin = 1.645;
    static constexpr double given_margin = 1;
    double sure_recall(uint32 step, uint32 factor) const {
        return between([&](int k) { return lower_bound(k, measured(k, step, factor)); });
    }
    double error(uint32 step, uint32 factor) const {
        return between([&](int k) { return standard_error(k, measured(k, step, factor)); });
    }
    double probes(uint32 step) const {
        if (!by_query_) return curve_.probes[step];
        return between([&](int k) { return double{curve_.query_probes[k][step]}; });
    }
    double scanned(uint32 step) const {
        if (!by_query_) return curve_.scanned[step];
        return between([&](int k) { return double{curve_.query_scanned[k][step]}; });
    }
    double threshold(uint32 step) const {
        if (!by_query_) return 0;
        return std::exp(
            between([&](int k) { return std::log(double{curve_.threshold[k][step]}); }));
    }

    // Searches that are like given queries get what was measured.
    double candidate_margin(uint32 factor) const {
        if (margin_ == given_margin) return 0;
        return between([&](int k) { return double{margins_.margin[k][factor]}; });
    }

  private:
    template <class OfK>
    double between(OfK of_k) const {
        const double low = of_k(low_);
        return part_ == 0 ? low : low + (of_k(high_) - low) * part_;
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
        const double one = curve_.error[k] * curve_.error[k] * margin_ * margin_ /
                           curve_.queries[k] / RecallCurve::k_values[k];
        const double width = std::sqrt(margin_ * margin_ * error * error + one * one / 4);
        return (recall + one / 2 - width) / (1 + one);
    }
    double standard_error(int k, double recall) const {
        return curve_.error[k] * std::sqrt(recall * (1 - recall) / curve_.queries[k]);
    }

    const RecallCurve& curve_;
    const CandidateMargins& margins_;
    const bool by_query_;
    const double margin_;
    int low_, high_;
    double part_ = 0;
};

// The cheapest effort of one side whose sure recall reaches the target; or, where none does, the
// one with the highest recall.
struct Choice {
    bool reached = false;
    double cost = 0;
    double scanned = 0;
    double recall = -1;
    Effort effort{};

    void offer(const Choice& other) {
        const bool better =
            other.reached ? !reached || other.cost < cost : !reached && other.recall > recall;
        if (better) *this = other;
    }
};

// The effort at a step, or between it and the one before if the target lies there.
Choice choice_at(const MetaPage& meta, const ScanCosts& costs, const CurveSide& side, double target,
                 uint32 step, uint32 factor, double wanted) {
    const double candidates = RecallCurve::factor_values[factor] * wanted;
    Choice choice;
    choice.recall = side.sure_recall(step, factor);
    choice.reached = choice.recall >= target;
    double probes = side.probes(step);
    double scanned = side.scanned(step);
    double threshold = side.threshold(step);
    if (choice.reached && step > 0) {
        const double before = side.sure_recall(step - 1, factor);
        const double part = choice.recall > before
                                ? std::clamp((target - before) / (choice.recall - before), 0.0, 1.0)
                                : 1.0;
        const auto linear = [part](double from, double to) { return from + part * (to - from); };
        probes = linear(side.probes(step - 1), probes);
        scanned = linear(side.scanned(step - 1), scanned);
        threshold = linear(side.threshold(step - 1), threshold);
    }
    choice.cost = effort_cost(meta, costs, probes, scanned, candidates, wanted);
    choice.scanned = scanned;
    // Between two steps it is the target; there is nothing below the first.
    const double promised = choice.reached && step > 0 ? target : std::max(choice.recall, target);
    choice.effort = {static_cast<uint32>(std::ceil(probes)),
                     static_cast<uint32>(std::ceil(candidates)), static_cast<float>(threshold),
                     static_cast<float>(promised),
                     static_cast<float>(side.candidate_margin(factor))};
    return choice;
}

// Raises the threshold, to `most` at the most, while a step is worth what it costs: the entries
// that it may scan, as a multiple, for a threshold that is larger by this factor.
template <class Worth>
void raise_threshold(const CurveSide& side, double most, Worth worth, Choice* choice) {
    const double from = choice->effort.threshold;
    if (!choice->reached || !(from > 0)) return;
    const double scanned = choice->scanned;
    for (uint32 step = 0; step < side.steps() && choice->effort.threshold < most; ++step) {
        const double threshold = std::min(side.threshold(step), most);
        if (threshold <= from) continue;
        if (side.scanned(step) > scanned * worth(threshold / from)) break;
        choice->effort.threshold = static_cast<float>(threshold);
        choice->effort.probes = static_cast<uint32>(std::ceil(side.probes(step)));
    }
}

// The last step whose threshold is not larger, or the first.
uint32 step_of(const CurveSide& side, double threshold) {
    uint32 step = 0;
    while (step + 1 < side.steps() && side.threshold(step + 1) <= threshold) ++step;
    return step;
}

// Entries, as a share, that rows with near duplicates pay for doubling the threshold. Without
// duplicates it is 0.4 and more.
constexpr double little = 0.2;

// Whether rows have near duplicates: then they pay little for a larger threshold, as their own
// radius ends them, where other queries take many more lists. Judged from one of these thresholds
// to the other, or as far as three times the smaller.
bool have_duplicates(const CurveSide& side, double one, double other) {
    const double small = std::min(one, other);
    const double large = std::max({one, other, 3 * small});
    return side.scanned(step_of(side, large)) <=
           side.scanned(step_of(side, small)) * (1 + little * std::log2(large / small));
}

// A number of lists that suffices for rows, and a threshold beyond for queries that are unlike
// them. `fixed` has the number.
Choice with_threshold(const CurveSide& side, double threshold, const Choice& fixed) {
    const uint32 step = step_of(side, threshold);
    Choice both = fixed;
    both.effort.first_lists = fixed.effort.probes;
    both.effort.threshold = static_cast<float>(threshold);
    both.effort.probes =
        std::max(fixed.effort.probes, static_cast<uint32>(std::ceil(side.probes(step))));
    both.scanned = std::max(fixed.scanned, side.scanned(step));
    both.cost *= both.scanned / std::max(fixed.scanned, 1.0);
    return both;
}

Choice choose_from(const MetaPage& meta, const ScanCosts& costs, const CurveSide& side,
                   double target, double wanted) {
    Choice best;
    for (uint32 f = 0; f < RecallCurve::factors; ++f)
        for (uint32 step = 0; step < side.steps(); ++step) {
            const Choice choice = choice_at(meta, costs, side, target, step, f, wanted);
            best.offer(choice);
            if (choice.reached) break;  // more lists only cost more
        }
    return best;
}

// The fewest lists that held the share of the k nearest rows that the target asks for, with as many
// candidates as were measured, so that only the lists matter. k is within what was measured.
double measured_lists(const MetaPage& meta, uint32 k) {
    const RecallCurve& curve = meta.curve;
    const CurveSide side(meta, ByQuery::no, k);
    const double target = aimed_recall(meta, k);
    for (uint32 step = 0; step < curve.steps; ++step)
        if (side.sure_recall(step, RecallCurve::factors - 1) >= target) return curve.probes[step];
    return meta.lists;
}

uint32 most_measured(const MetaPage& meta) {
    return RecallCurve::k_values[last_k(meta.curve)];
}

// How many times as many lists k rows need as the most rows that were measured: lists grow with a
// power of k, which is that between the measured ones.
double growth_beyond_measured(const MetaPage& meta, double k) {
    constexpr double least_power = 0.15;
    const uint32 most = most_measured(meta);
    if (k <= most || !has_curve(meta)) return 1;
    const uint32 less = std::max(1u, most / 10);
    const double power = std::log10(measured_lists(meta, most) / measured_lists(meta, less));
    return std::pow(k / most, std::clamp(power, least_power, 1.0));
}

}  // namespace

ScanCosts cpu_costs(const MetaPage& meta) {
    ScanCosts costs = visiting_costs(meta);
    costs.refines = meta.refinement != RefinementKind::none && settings.refine;
    return costs;
}

bool has_curve(const MetaPage& meta) {
    return meta.curve.queries[0] > 0;
}

int learned_group(double k) {
    const auto measured = [](int group) {
        return static_cast<double>(RecallCurve::k_values[group]);
    };
    int group = 0;
    while (group + 1 < RecallCurve::ks && k * k >= measured(group) * measured(group + 1)) ++group;
    return group;
}

double aimed_recall(const MetaPage& meta, double k) {
    const double target = settings.target_recall;
    const double correction = meta.learned.correction[learned_group(k)];
    if (correction == 0 || target <= 0 || target >= 1) return target;
    const double odds = target / (1 - target) * std::exp(correction);
    return odds / (1 + odds);
}

bool expected_recall(const MetaPage& meta, uint32 k, const Effort& effort, ExpectedRecall* result) {
    if (!has_curve(meta)) return false;
    const CurveSide side(meta, effort.threshold > 0 ? ByQuery::yes : ByQuery::no, k);
    const double wanted = RecallCurve::wanted(k);
    uint32 factor = 0;
    while (factor + 1 < RecallCurve::factors &&
           RecallCurve::factor_values[factor + 1] * wanted <= effort.candidates + 0.5)
        ++factor;
    uint32 step = 0;
    const auto is_less = [&](uint32 at) {
        return effort.threshold > 0 ? side.threshold(at) <= effort.threshold * 1.0001
                                    : side.probes(at) <= effort.probes;
    };
    while (step + 1 < side.steps() && is_less(step + 1)) ++step;
    double recall = side.recall(step, factor);
    const bool by_query = effort.threshold > 0;
    const double at = by_query ? effort.threshold : effort.probes;
    const double from = by_query ? side.threshold(step) : side.probes(step);
    if (step + 1 < side.steps() && at > from) {
        const double to = by_query ? side.threshold(step + 1) : side.probes(step + 1);
        if (to > from)
            recall += (side.recall(step + 1, factor) - recall) * (at - from) / (to - from);
    }
    *result = {recall, 1.645 * side.error(step, factor)};
    if (by_query && effort.first_lists > 0) {
        Effort first = effort;
        first.probes = effort.first_lists;
        first.threshold = 0;
        ExpectedRecall of_first;
        if (expected_recall(meta, k, first, &of_first) && of_first.recall > recall)
            *result = of_first;
    }
    return true;
}

double lists_for(const MetaPage& meta, double k) {
    if (!has_curve(meta)) return meta.lists;
    const auto measured = static_cast<uint32>(std::clamp<double>(k, 1, most_measured(meta)));
    return std::min<double>(meta.lists,
                            measured_lists(meta, measured) * growth_beyond_measured(meta, k));
}

double expected_lists(const MetaPage& meta, double k) {
    const double all = meta.lists;
    const double rows = static_cast<double>(meta.rows_at_build);
    if (!has_curve(meta) || k >= rows) return all;
    // From there on, the spread says more: the curve's queries with as many neighbors are few.
    const double first = std::min(100u, most_measured(meta));
    if (k <= first) return lists_for(meta, k);
    // Between two points, lists grow with a power of k. The last point is all rows, in all lists.
    double from = first;
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
    const Effort effort = choose_effort(meta, spread, visiting_costs(meta));
    const double ratio = static_cast<double>(effort.candidates) / spread;
    return std::ceil(std::max(ratio, 1.0) * k);
}

double lists_for_filter(const MetaPage& meta, double nearest) {
    // Both the share and the curve, which ends at fewer rows, are estimates.
    constexpr double margin = 1.5;
    const double lists = std::max(margin * lists_for(meta, nearest), expected_lists(meta, nearest));
    return std::min<double>(meta.lists, std::ceil(lists));
}

namespace {

// What a choice depends on.
struct ChoiceKey {
    uint64 build_id;
    int64 curve_at;
    uint32 queries;
    int64 learned_at;
    double target;
    uint32 k;
    ByQuery by_query;
    ScanCosts costs;

    friend bool operator==(const ChoiceKey& a, const ChoiceKey& b) {
        return a.build_id == b.build_id && a.curve_at == b.curve_at && a.queries == b.queries &&
               a.learned_at == b.learned_at && a.target == b.target && a.k == b.k &&
               a.by_query == b.by_query && a.costs == b.costs;
    }
};

Effort choose_by_curve(const MetaPage& meta, uint32 k, const ScanCosts& costs, ByQuery by_query);

// The threshold with which one side has the target on average; 0: none that was measured.
double threshold_of(const CurveSide& side, double target) {
    double before = 0;
    for (uint32 step = 0; step < side.steps(); ++step) {
        const double recall = side.recall(step, RecallCurve::factors - 1);
        if (recall < target) {
            before = recall;
            continue;
        }
        const double here = side.threshold(step);
        if (step == 0) return here;
        const double part = (target - before) / (recall - before);
        return side.threshold(step - 1) + part * (here - side.threshold(step - 1));
    }
    return 0;
}

// That of searches for many more rows. Where rows have near duplicates, how far these are says
// nothing of how far a row beyond them may be. The more rows, the fewer of them are duplicates; but
// those of a good part of the table are near anyhow. Few queries were measured with as many
// neighbors, so it is their mean that counts.
double threshold_of_more(const MetaPage& meta, uint32 k) {
    constexpr uint64 good_part = 100;
    for (uint64 more = most_measured(meta); more >= uint64{10} * k; more /= 10) {
        if (more * good_part > meta.rows_at_build && more >= uint64{100} * k) continue;
        const auto rows = static_cast<uint32>(more);
        const double threshold =
            threshold_of(CurveSide(meta, ByQuery::yes, rows), aimed_recall(meta, rows));
        if (threshold > 0) return threshold;
    }
    return 0;
}

// That of a search for about the most rows that were measured, if these are a hundred and more: of
// as many, few are duplicates. 0: none.
double threshold_of_most(const MetaPage& meta, uint32 k, double target) {
    constexpr uint32 many = 100;
    if (k < many || uint64{10} * k <= most_measured(meta)) return 0;
    return threshold_of(CurveSide(meta, ByQuery::yes, k), target);
}

// A query that is near no duplicates has those of one row at about one distance (list_effort.h).
// It needs the more candidates: as many on a device, which takes more lists instead where these
// cost less, as on the CPU.
Choice near_duplicates(const MetaPage& meta, uint32 k, double target, double wanted,
                       Choice choice) {
    const Effort cpu =
        choose_from(meta, visiting_costs(meta), CurveSide(meta, ByQuery::no, k), target, wanted)
            .effort;
    choice.effort.candidates = std::max(choice.effort.candidates, cpu.candidates);
    choice.effort.margin = std::max(choice.effort.margin, cpu.margin);
    // As many as are candidates in any case.
    choice.effort.wider_k = k < fast_list_k ? fast_list_k : 0;
    return choice;
}

// Thresholds where rows have no near duplicates: common ones are about `usual`, and up to `most`.
struct CommonThresholds {
    CommonThresholds(const MetaPage& meta, uint32 k, double target)
        : missing(std::max(1 - target, 1e-6)),
          usual(25 / missing),
          of_more(threshold_of_more(meta, k)),
          most(std::max({of_more, threshold_of_most(meta, k, target), 160 / missing})) {}
    double missing;
    double usual;
    double of_more;  // that of many more rows; 0: none
    double most;
};

// What a choice by query may cost more than one number of lists for all.
constexpr double worth = 1.5;

bool is_worthwhile(const Choice& own, const Choice& fixed) {
    return own.reached && fixed.reached && own.cost <= worth * fixed.cost;
}

// Whether searches of rows for k rows find near duplicates. Not a question of what a device's
// lists cost: all executors notice the same.
bool find_duplicates(const MetaPage& meta, uint32 k, double target) {
    const CurveSide side(meta, ByQuery::yes, k);
    if (side.steps() == 0) return false;
    const double wanted = RecallCurve::wanted(k);
    const ScanCosts costs = visiting_costs(meta);
    const Choice fixed = choose_from(meta, costs, CurveSide(meta, ByQuery::no, k), target, wanted);
    if (!fixed.reached) return false;
    const Choice own = choose_from(meta, costs, side, target, wanted);
    const CommonThresholds common(meta, k, target);
    return have_duplicates(side, is_worthwhile(own, fixed) ? own.effort.threshold : common.usual,
                           common.most);
}

// Whether a search for k rows treats the table as one with near duplicates. Where the ten nearest
// rows are duplicates, the nearest is one, and what is measured of a hundred is half of duplicates.
bool expects_duplicates(const MetaPage& meta, uint32 k, double target) {
    constexpr uint32 ten = 10, hundred = 100;
    if (find_duplicates(meta, k, target)) return true;
    // What live searches for ten rows taught is no concern of others.
    return k != ten && k <= hundred && find_duplicates(meta, ten, settings.target_recall);
}

// Each query decides by itself: it then finds what is asked for even if it is unlike those that
// were measured. `fixed` is the choice of one number of lists for all.
//
// Where rows have near duplicates, they find these in their first lists, at a threshold that ends
// other queries too early; or nowhere near, at one that lets other queries look into most lists.
// Thresholds hardly depend on k elsewhere, so that of many more rows tells what these need.
Choice choose_by_query(const MetaPage& meta, uint32 k, const ScanCosts& costs, double target,
                       double wanted, const Choice& fixed) {
    const CurveSide side(meta, ByQuery::yes, k);
    if (side.steps() == 0) return fixed;
    Choice own = choose_from(meta, costs, side, target, wanted);
    const CommonThresholds common(meta, k, target);
    const bool worthwhile = is_worthwhile(own, fixed);
    if (fixed.reached && expects_duplicates(meta, k, target))
        return near_duplicates(meta, k, target, wanted, with_threshold(side, common.most, fixed));
    if (worthwhile || !fixed.reached) {
        // What is common is taken where rows pay as little for it as with duplicates. Searches that
        // are like given queries get what was measured.
        if (meta.curve_source != CurveSource::queries) {
            raise_threshold(
                side, common.usual, [](double times) { return 1 + little * std::log2(times); },
                &own);
            raise_threshold(
                side, common.of_more, [](double) { return worth; }, &own);
        }
        if (worthwhile) return own;
        Choice best = fixed;
        best.offer(own);
        return best;
    }
    // One number of lists for all, and more of them for queries that are unlike rows. These may
    // cost rows a share more, or as many again where many more rows need them.
    constexpr double share = 0.5;
    double threshold = 0;
    for (uint32 step = 0; step < side.steps() && threshold < common.most; ++step) {
        const double next = std::min(side.threshold(step), common.most);
        const double worthwhile_entries = (next <= common.of_more ? 1 : share) * fixed.scanned;
        if (side.scanned(step) > worthwhile_entries) break;
        threshold = next;
    }
    if (!(threshold > 0)) return fixed;
    const Choice both = with_threshold(side, threshold, fixed);
    // Where no threshold suffices, lists that are far by the distance of duplicates have these.
    return own.reached ? both : near_duplicates(meta, k, target, wanted, both);
}

// The margin of a search for ten times as many rows, or more. Codes err by the same multiple of the
// distance whatever k is, so margins hardly depend on k: except where rows have near duplicates,
// which any code tells from other rows. A query that is near no duplicates needs the margin that
// rows have beyond theirs.
float margin_of_more(const MetaPage& meta, uint32 k, const ScanCosts& costs) {
    const uint64 more = uint64{10} * k;
    if (more > most_measured(meta)) return 0;
    return choose_by_curve(meta, static_cast<uint32>(more), costs, ByQuery::yes).margin;
}

Effort choose_by_curve(const MetaPage& meta, uint32 k, const ScanCosts& costs, ByQuery by_query) {
    const double target = aimed_recall(meta, k);
    const double wanted = RecallCurve::wanted(k);
    Choice best = choose_from(meta, costs, CurveSide(meta, ByQuery::no, k), target, wanted);
    if (by_query == ByQuery::yes && k <= most_measured(meta))
        best = choose_by_query(meta, k, costs, target, wanted, best);
    best.effort.probes = static_cast<uint32>(
        std::min<double>(meta.lists, best.effort.probes * growth_beyond_measured(meta, k)));
    if (best.effort.margin > 0 && by_query == ByQuery::yes)
        best.effort.margin = std::max(best.effort.margin, margin_of_more(meta, k, costs));
    return best.effort;
}

// The same, from choices that this backend remembers: a search asks for two or three, and a choice
// looks at hundreds of points of the curve. A search of a partitioned table asks for those of all
// partitions.
Effort remembered_choice(const MetaPage& meta, uint32 k, const ScanCosts& costs, ByQuery by_query) {
    struct Remembered {
        ChoiceKey key;
        Effort effort;
    };
    // Each choice has a few places, which are overwritten in turn. With four, five choices of one
    // search shared them now and then, and each was made again for every query.
    constexpr uint32 sets = 1024;
    constexpr int ways = 8;
    static Remembered choices[sets][ways];
    static uint8 next[sets];
    const ChoiceKey key{meta.build_id,
                        meta.curve_at,
                        meta.curve.queries[0],
                        meta.learned.at,
                        settings.target_recall,
                        k,
                        by_query,
                        costs};
    const uint64 kind = uint64{k} << 40 ^ static_cast<uint64>(costs.probe) << 8 ^
                        static_cast<uint64>(costs.refines) << 1 ^ (by_query == ByQuery::yes);
    const uint64 mixed = (key.build_id ^ kind) * uint64{0x9E3779B97F4A7C15};
    const uint64 set = mixed >> 32 & (sets - 1);
    Remembered* places = choices[set];
    Remembered* place =
        std::find_if(places, places + ways, [&key](const Remembered& r) { return r.key == key; });
    if (place == places + ways) {
        const Effort effort = choose_by_curve(meta, k, costs, by_query);
        place = &places[next[set]++ % ways];
        *place = {key, effort};
    }
    return place->effort;
}

}  // namespace

Effort choose_effort(const MetaPage& meta, uint32 k, const ScanCosts& costs, ByQuery by_query) {
    Effort effort = has_curve(meta) ? remembered_choice(meta, k, costs, by_query)
                                    : effort_without_curve(meta, k);
    if (settings.target_recall >= 1) effort.probes = meta.lists;
    if (settings.probes > 0) effort.probes = static_cast<uint32>(settings.probes);
    if (settings.candidates > 0) effort.candidates = static_cast<uint32>(settings.candidates);
    // Where the session sets an effort, no query decides on another.
    if (settings.target_recall >= 1 || settings.probes > 0) effort.threshold = effort.margin = 0;
    if (settings.candidates > 0 || by_query == ByQuery::no) effort.margin = 0;
    effort.probes = std::clamp(effort.probes, 1u, std::max(1u, meta.lists));
    effort.candidates = std::max(effort.candidates, k);
    return effort;
}

}  // namespace pgwarp
