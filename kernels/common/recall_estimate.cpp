#include "kernels/recall_estimate.h"

#include <algorithm>
#include <cmath>

namespace pgwarp {

namespace {

// An audit has lost two thirds of its weight after this many others.
constexpr double memory = 1000;

// Half the width of a 95% interval, in standard errors.
constexpr double interval_width = 1.96;

void fade(RecallEstimate* estimate, double factor) {
    estimate->weights *= factor;
    estimate->squared_weights *= factor * factor;
    estimate->recall *= factor;
    estimate->squared_recall *= factor;
    estimate->poor *= factor;
    estimate->target *= factor;
    estimate->correction *= factor;
}

double mean_of(const RecallEstimate& estimate) {
    return estimate.recall / estimate.weights;
}

// Of the recall of single searches. A few audits may show less of it than there is.
double variance_of(const RecallEstimate& estimate) {
    constexpr double least_share = 0.1;
    const double mean = mean_of(estimate);
    const double seen = estimate.squared_recall / estimate.weights - mean * mean;
    // As if a neighbor more had been missed: where all were found, the mean says nothing.
    const double doubted = std::min(mean, 1 - 0.5 / (effective_audits(estimate) + 1));
    return std::max(seen, least_share * doubted * (1 - doubted));
}

}  // namespace

void add_audit(RecallEstimate* estimate, const AuditResult& result) {
    fade(estimate, 1 - 1 / memory);
    *estimate = together(
        *estimate, {1, 1, result.recall, result.recall * result.recall,
                    result.recall < poor_recall ? 1.0 : 0.0, result.target, result.correction});
}

void fade_before_step(RecallEstimate* estimate, double step) {
    fade(estimate, std::exp(-std::abs(step)));
}

RecallEstimate together(const RecallEstimate& a, const RecallEstimate& b) {
    return {a.weights + b.weights,
            a.squared_weights + b.squared_weights,
            a.recall + b.recall,
            a.squared_recall + b.squared_recall,
            a.poor + b.poor,
            a.target + b.target,
            a.correction + b.correction};
}

double effective_audits(const RecallEstimate& estimate) {
    return estimate.weights * estimate.weights / estimate.squared_weights;
}

RecallInterval recall_interval(const RecallEstimate& estimate) {
    const double mean = std::clamp(mean_of(estimate), 0.0, 1.0);
    // As many independent trials would have this variance.
    const double trials =
        effective_audits(estimate) * std::max(mean * (1 - mean) / variance_of(estimate), 1.0);
    const double z2 = interval_width * interval_width;
    const double center = (mean + z2 / (2 * trials)) / (1 + z2 / trials);
    const double half = interval_width / (1 + z2 / trials) *
                        std::sqrt(mean * (1 - mean) / trials + z2 / (4 * trials * trials));
    return {mean, std::clamp(center - half, 0.0, mean), std::clamp(center + half, mean, 1.0)};
}

double mean_target(const RecallEstimate& estimate) {
    return estimate.target / estimate.weights;
}

double poor_share(const RecallEstimate& estimate) {
    return estimate.poor / estimate.weights;
}

double logit(double share) {
    constexpr double least = 1e-4;
    share = std::clamp(share, least, 1 - least);
    return std::log(share / (1 - share));
}

double corrected_recall(double target, double correction) {
    if (correction == 0 || target <= 0 || target >= 1) return target;
    return 1 / (1 + std::exp(-(std::log(target / (1 - target)) + correction)));
}

double next_correction(const RecallEstimate& estimate, double in_force) {
    constexpr double least_step = 0.05;
    const RecallInterval interval = recall_interval(estimate);
    // The curve errs by as much, in logits, whatever the correction was when it was used.
    const double target = logit(mean_target(estimate)) + estimate.correction / estimate.weights;
    double next = in_force;
    if (in_force < target - logit(interval.high)) next = target - logit(interval.recall);
    if (in_force > target - logit(interval.low)) next = target - logit(interval.low);
    next = std::clamp(next, in_force - longest_correction_step, in_force + longest_correction_step);
    next = std::clamp(next, 0.0, most_correction);
    return next > 0 && next < most_correction && std::abs(next - in_force) < least_step ? in_force
                                                                                        : next;
}

uint32_t audits_to_next_correction(const RecallEstimate& estimate) {
    constexpr double least = 50;
    return static_cast<uint32_t>(std::max(least, effective_audits(estimate) / 4));
}

}  // namespace pgwarp
