#include "kernels/recall_estimate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/random.h"

namespace pgwarp {
namespace {

// Queries of an index whose curve errs: their recall is, in logits, off the target by `bias`, and
// by `slope` times the correction. Neighbors of a query are found and missed together, in
// part.
struct Workload {
    double bias;
    double slope = 1;
    uint32_t k = 10;
};

double recall_of(const Workload& workload, double target, double correction) {
    return 1 / (1 + std::exp(-(logit(target) + workload.slope * correction + workload.bias)));
}

double audited_recall(const Workload& workload, double mean, Random* random) {
    // Every third query is a hard one.
    const double hard = std::max(0.0, 1 - 2 * (1 - mean));
    const double easy = mean + (mean - hard) / 2;
    const double chance = random->uniform() < 1.0 / 3 ? hard : easy;
    uint32_t found = 0;
    for (uint32_t i = 0; i < workload.k; ++i) found += random->uniform() < chance ? 1 : 0;
    return static_cast<double>(found) / workload.k;
}

struct Learned {
    double correction;
    double recall = 0;  // the mean with the last correction
    uint32_t changes = 0;
    double largest_step = 0;
};

Learned learn(const Workload& workload, double target, uint32_t audits, uint64_t seed,
              double from = 0) {
    Random random(seed);
    RecallEstimate estimate = {};
    Learned learned = {from};
    uint32_t since = 0;
    for (uint32_t i = 0; i < audits; ++i) {
        const double mean = recall_of(workload, target, learned.correction);
        add_audit(&estimate, {audited_recall(workload, mean, &random), target, learned.correction});
        if (++since < audits_to_next_correction(estimate)) continue;
        since = 0;
        const double next = next_correction(estimate, learned.correction);
        learned.changes += next != learned.correction ? 1 : 0;
        learned.largest_step = std::max(learned.largest_step, std::abs(next - learned.correction));
        fade_before_step(&estimate, next - learned.correction);
        learned.correction = next;
    }
    learned.recall = recall_of(workload, target, learned.correction);
    return learned;
}

TEST(RecallEstimate, MeanAndInterval) {
    RecallEstimate estimate = {};
    add_audit(&estimate, {1, 0.95, 0});
    EXPECT_DOUBLE_EQ(recall_interval(estimate).recall, 1);
    EXPECT_DOUBLE_EQ(recall_interval(estimate).high, 1);
    EXPECT_LT(recall_interval(estimate).low, 0.9);
    for (int i = 0; i < 99; ++i) add_audit(&estimate, {i % 2 ? 1.0 : 0.8, 0.95, 0});
    const RecallInterval interval = recall_interval(estimate);
    EXPECT_NEAR(interval.recall, 0.9, 0.003);
    // 100 audits with a standard deviation of 0.1.
    EXPECT_NEAR(interval.low, 0.88, 0.003);
    EXPECT_NEAR(interval.high, 0.918, 0.003);
    EXPECT_NEAR(mean_target(estimate), 0.95, 1e-9);
    EXPECT_NEAR(effective_audits(estimate), 100, 0.5);
    EXPECT_EQ(poor_share(estimate), 0);
    // A fifth of all, and the last ones weigh most.
    for (int i = 0; i < 25; ++i) add_audit(&estimate, {0.7, 0.95, 0});
    EXPECT_NEAR(poor_share(estimate), 0.21, 0.005);
}

TEST(RecallEstimate, IntervalsHoldTheMean) {
    const Workload workload{0};
    int held = 0;
    constexpr int runs = 400;
    for (int run = 0; run < runs; ++run) {
        Random random(1000 + run);
        RecallEstimate estimate = {};
        for (int i = 0; i < 200; ++i)
            add_audit(&estimate, {audited_recall(workload, 0.95, &random), 0.95, 0});
        const RecallInterval interval = recall_interval(estimate);
        held += interval.low <= 0.95 && 0.95 <= interval.high ? 1 : 0;
    }
    EXPECT_GT(held, runs * 0.92);
}

TEST(RecallEstimate, OldAuditsFade) {
    RecallEstimate estimate = {};
    for (int i = 0; i < 5000; ++i) add_audit(&estimate, {0.5, 0.95, 0});
    for (int i = 0; i < 5000; ++i) add_audit(&estimate, {0.9, 0.9, 0});
    EXPECT_NEAR(recall_interval(estimate).recall, 0.9, 0.005);
    EXPECT_NEAR(mean_target(estimate), 0.9, 0.005);
    EXPECT_LT(effective_audits(estimate), 2500);
}

TEST(RecallEstimate, NothingIsLearnedOfWhatIsRight) {
    uint32_t changes = 0;
    for (uint64_t seed = 0; seed < 50; ++seed) {
        const Learned learned = learn({0}, 0.95, 2000, seed);
        EXPECT_LE(learned.recall, 0.962) << seed;
        changes += learned.changes;
    }
    // By chance, and seldom.
    EXPECT_LE(changes, 50u);
}

TEST(RecallEstimate, EffortIsNeverBelowWhatWasMeasured) {
    for (const double bias : {0.5, 1.0, 3.0})
        for (const uint32_t k : {1u, 10u, 100u})
            for (uint64_t seed = 0; seed < 50; ++seed) {
                const Learned learned = learn({bias, 1, k}, 0.95, 2000, seed);
                EXPECT_EQ(learned.correction, 0) << bias << ' ' << k << ' ' << seed;
                EXPECT_EQ(learned.changes, 0u) << bias << ' ' << k << ' ' << seed;
            }
}

TEST(RecallEstimate, CorrectionMeetsTheTarget) {
    for (const double bias : {-0.9, -0.6, -0.3})
        for (const double slope : {0.5, 1.0, 1.5})
            for (const uint32_t k : {1u, 10u, 100u}) {
                double sum = 0;
                constexpr int runs = 40;
                for (uint64_t seed = 0; seed < runs; ++seed) {
                    const Learned learned = learn({bias, slope, k}, 0.95, 2000, seed);
                    EXPECT_LE(learned.largest_step, longest_correction_step + 1e-9);
                    sum += learned.recall;
                }
                EXPECT_GT(sum / runs, 0.943) << bias << ' ' << slope << ' ' << k;
                // Single neighbors tell least.
                EXPECT_LT(sum / runs, k == 1 ? 0.97 : 0.96) << bias << ' ' << slope << ' ' << k;
            }
}

TEST(RecallEstimate, CorrectionIsGivenBack) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        // Queries of another kind had needed it.
        const Learned all = learn({0.7}, 0.95, 3000, seed, 1.5);
        EXPECT_EQ(all.correction, 0) << seed;
        const Learned some = learn({-0.8}, 0.95, 3000, seed, 2.5);
        EXPECT_LT(some.correction, 1.4) << seed;
        EXPECT_GT(some.recall, 0.945) << seed;
        EXPECT_LE(some.largest_step, longest_correction_step + 1e-9);
    }
}

TEST(RecallEstimate, ThreeHundredAuditsAreEnoughMostly) {
    int within = 0, runs = 0;
    for (const double bias : {-0.6, -0.45, -0.1, 0.0})
        for (uint64_t seed = 0; seed < 100; ++seed, ++runs) {
            const double recall = learn({bias}, 0.95, 300, seed).recall;
            within += recall >= 0.94 && recall <= 0.965 ? 1 : 0;
        }
    EXPECT_GT(within, runs * 0.8);
}

TEST(RecallEstimate, EffortThatHardlyAnswers) {
    // With a fifth of the effect, a correction of 1.5 is needed.
    for (uint64_t seed = 0; seed < 20; ++seed)
        EXPECT_GT(learn({-0.3, 0.2}, 0.95, 2000, seed).recall, 0.937) << seed;
}

TEST(RecallEstimate, OtherTargetsTeach) {
    // All searches ask for 0.99. What was learned holds for 0.95.
    const Learned learned = learn({-0.5}, 0.99, 4000, 7);
    EXPECT_NEAR(learned.correction, 0.5, 0.2);
    EXPECT_GT(recall_of({-0.5}, 0.95, learned.correction), 0.945);
}

TEST(RecallEstimate, BoundHolds) {
    EXPECT_DOUBLE_EQ(learn({-8}, 0.95, 5000, 1).correction, most_correction);
}

}  // namespace
}  // namespace pgwarp
