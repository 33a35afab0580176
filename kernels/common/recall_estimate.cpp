#include "kernels/recall_estimate.h"

#include <algorithm>
#include <cmath>

namespace pgwarp {

namespace {

// An audit has lost two thirds of its weight after this many others.
constexpr double memory = 1000;

// Where the mean recall shall be, above the target, in logits: the estimate errs to both sides, and
// an audit does not find the last neighbors either. At a target of 0.95 it is half a percent.
constexpr double above_target = 0.12;

// Half the width of a 95% interval, in standard errors.
constexpr double interval_width = 1.96;

void fade(RecallEstimate* estimate, double factor) {
    estimate->weights *= factor;
    estimate->squared_weights *= factor * factor;
    estimate->recall *= factor;
    estimate->squared_recall *= factor;
    estimate->target *= factor;
    estimate->aimed *= factor;
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

// The mean recall, away from 1 by as much as the audits cannot tell from it.
double doubted_mean(const RecallEstimate& estimate) {
    return std::min(mean_of(estimate), 1 - 0.25 / (effective_audits(estimate) + 1));
}

// Variance of the logit of the mean recall.
double logit_variance(const RecallEstimate& estimate) {
    const double mean = std::clamp(doubted_mean(estimate), 0.001, 0.999);
    const double slope = mean * (1 - mean);
    return variance_of(estimate) / effective_audits(estimate) / (slope * slope);
}

}  // namespace

void add_audit(RecallEstimate* estimate, const AuditResult& result) {
    fade(estimate, 1 - 1 / memory);
    *estimate = together(*estimate, {1, 1, result.recall, result.recall * result.recall,
                                     result.target, result.aimed});
}

void fade_before_step(RecallEstimate* estimate, double step) {
    fade(estimate, std::exp(-std::abs(step)));
}

RecallEstimate together(const RecallEstimate& a, const RecallEstimate& b) {
    return {a.weights + b.weights, a.squared_weights + b.squared_weights,
            a.recall + b.recall,   a.squared_recall + b.squared_recall,
            a.target + b.target,   a.aimed + b.aimed};
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

double logit(double share) {
    constexpr double least = 1e-4;
    share = std::clamp(share, least, 1 - least);
    return std::log(share / (1 - share));
}

double corrected_recall(double target, double correction) {
    if (correction == 0 || target <= 0 || target >= 1) return target;
    return 1 / (1 + std::exp(-(std::log(target / (1 - target)) + correction)));
}

double wanted_correction(const RecallEstimate& estimate, const CorrectionPrior& prior) {
    // The curve errs by as much, whatever the correction was when it was used.
    const double bias = logit(doubted_mean(estimate)) - logit(estimate.aimed / estimate.weights);
    const double measured = above_target - bias;
    const double trust = prior.variance / (prior.variance + logit_variance(estimate));
    return prior.mean + trust * (measured - prior.mean);
}

double next_correction(const RecallEstimate& estimate, const CorrectionPrior& prior,
                       double in_force) {
    const double wanted =
        std::clamp(wanted_correction(estimate, prior), least_correction, most_correction);
    const double chance = std::max(0.05, 0.5 * std::sqrt(logit_variance(estimate)));
    if (std::abs(wanted - in_force) <= chance) return in_force;
    return std::clamp(wanted, in_force - longest_correction_step,
                      in_force + longest_correction_step);
}

uint32_t audits_to_next_correction(const RecallEstimate& estimate) {
    constexpr double least = 50;
    return static_cast<uint32_t>(std::max(least, effective_audits(estimate) / 4));
}

}  // namespace pgwarp
