// Refinement codes against float64: the error that they claim is never exceeded.

#include "kernels/refinement.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/guarded.h"
#include "test/kernels/reference.h"

namespace pgwarp {
namespace {

class RefinementTest : public EveryTarget {
  protected:
    void SetUp() override {
        EveryTarget::SetUp();
        choose_refinement_target();
    }
    void TearDown() override {
        EveryTarget::TearDown();
        choose_refinement_target();
    }
};

constexpr Metric metrics[] = {Metric::l2, Metric::inner_product, Metric::cosine};

struct Case {
    uint32_t dims;
    Metric metric;
    std::vector<float> row, centroid, query;
    float list_term() const {
        return static_cast<float>(has_norms(metric)
                                      ? reference_squared_l2(query.data(), centroid.data(), dims)
                                      : -reference_product(query.data(), centroid.data(), dims));
    }
    double distance() const {
        return has_norms(metric) ? reference_squared_l2(query.data(), row.data(), dims)
                                 : -reference_product(query.data(), row.data(), dims);
    }
};

Case random_case(std::mt19937& random) {
    const auto dims = static_cast<uint32_t>(
        between(random, 0, 3) ? between(random, 1, 200) : between(random, 1, max_refined_dims));
    // Near the origin and far from it.
    const float spread = std::pow(10.0f, static_cast<float>(between(random, 0, 3)) - 1);
    Case c{dims, metrics[between(random, 0, 2)], {}, normal_floats(random, dims, spread), {}};
    c.row = normal_floats(random, dims);
    c.query = normal_floats(random, dims);
    for (uint32_t d = 0; d < dims; ++d) {
        c.row[d] += c.centroid[d];
        c.query[d] += c.centroid[d];
    }
    return c;
}

struct Code {
    RefinementHead head;
    std::vector<int8_t> codes;
};

// Both arrays end at a page that cannot be read.
Code encode(const Case& c) {
    Guarded<float> row(c.dims), centroid(c.dims);
    Guarded<int8_t> codes(c.dims);
    std::copy(c.row.begin(), c.row.end(), row.begin());
    std::copy(c.centroid.begin(), c.centroid.end(), centroid.begin());
    const RefinementHead head =
        encode_refinement(c.metric, row.data(), centroid.data(), c.dims, codes.data());
    return {head, {codes.begin(), codes.end()}};
}

RefinedDistance score(const Case& c, const Code& code) {
    Guarded<int16_t> values(c.dims);
    Guarded<int8_t> codes(c.dims);
    std::copy(code.codes.begin(), code.codes.end(), codes.begin());
    const RefinementQuery query =
        make_refinement_query(c.metric, c.query.data(), c.dims, values.data());
    return refined_distance(query, c.list_term(), code.head, codes.data());
}

TEST_P(RefinementTest, CodesAreTheNearestLevels) {
    for (int round = 0; round < 50; ++round) {
        const Case c = random_case(random);
        const Code code = encode(c);
        double error = 0, norm = 0, product = 0;
        float most = 0;
        for (uint32_t d = 0; d < c.dims; ++d) {
            const float residual = c.row[d] - c.centroid[d];
            most = std::max(most, std::fabs(residual));
            const double taken = double{code.head.scale} * code.codes[d];
            EXPECT_LE(std::fabs(residual - taken), 0.5001 * code.head.scale);
            error += (residual - taken) * (residual - taken);
            norm += taken * taken;
            product += taken * c.centroid[d];
        }
        EXPECT_FLOAT_EQ(code.head.scale, most / 127);
        EXPECT_NEAR(code.head.error, std::sqrt(error), 1e-4 * std::sqrt(error) + 1e-9);
        EXPECT_NEAR(code.head.norm, std::sqrt(norm), 1e-4 * std::sqrt(norm));
        const double offset = has_norms(c.metric) ? norm + 2 * product + error : 0;
        const double magnitude =
            norm +
            std::sqrt(norm * reference_product(c.centroid.data(), c.centroid.data(), c.dims));
        EXPECT_NEAR(code.head.offset, offset, 1e-5 * magnitude);
    }
}

TEST_P(RefinementTest, DistancesAreWithinTheirErrors) {
    double errors = 0, distances = 0;
    for (int round = 0; round < 300; ++round) {
        const Case c = random_case(random);
        const RefinedDistance refined = score(c, encode(c));
        const double exact = c.distance();
        ASSERT_LE(std::fabs(refined.distance - exact), refined.error)
            << c.dims << " dimensions, metric " << static_cast<int>(c.metric) << ", exact "
            << exact;
        if (c.dims < 100 || !has_norms(c.metric)) continue;
        errors += refined.error;
        distances += exact;
    }
    // The errors are worth knowing.
    EXPECT_LT(errors, 0.2 * distances);
}

TEST_P(RefinementTest, ErrorsPushedInOneDirectionAreWithinTheBound) {
    // Every dimension is rounded down by the same amount, and the query looks in that direction.
    Case c{300, Metric::l2, std::vector<float>(300, 0.4f / 127), std::vector<float>(300), {}};
    c.row[0] = 1;
    c.query.assign(300, 100);
    const RefinedDistance refined = score(c, encode(c));
    EXPECT_LE(std::fabs(refined.distance - c.distance()), refined.error);
    EXPECT_GT(std::fabs(refined.distance - c.distance()), 0.5 * refined.error);
}

TEST_P(RefinementTest, ARowAtItsCentroidIsExact) {
    Case c = random_case(random);
    c.row = c.centroid;
    const Code code = encode(c);
    EXPECT_EQ(code.head.scale, 0);
    EXPECT_EQ(code.head.error, 0);
    const RefinedDistance refined = score(c, code);
    EXPECT_EQ(refined.distance, c.list_term());
    EXPECT_LE(std::fabs(refined.distance - c.distance()), refined.error);
}

TEST_P(RefinementTest, TheLargestProductDoesNotOverflow) {
    for (const uint32_t dims : {1u, 7u, 64u, 4000u, max_refined_dims}) {
        Case c{dims, Metric::inner_product, std::vector<float>(dims, 1), std::vector<float>(dims),
               std::vector<float>(dims, 1)};
        EXPECT_NEAR(score(c, encode(c)).distance, -static_cast<double>(dims), 1e-3 * dims) << dims;
        c.query.assign(dims, -1);
        EXPECT_NEAR(score(c, encode(c)).distance, static_cast<double>(dims), 1e-3 * dims) << dims;
    }
}

TEST_P(RefinementTest, WhatOverflowsHasAnInfiniteError) {
    constexpr float huge = std::numeric_limits<float>::max();
    Case c{3, Metric::l2, {huge, 1, 2}, {-huge, 0, 0}, {huge, 1, 1}};
    EXPECT_TRUE(std::isinf(score(c, encode(c)).error));
    c.centroid = {0, 0, 0};
    EXPECT_TRUE(std::isinf(score(c, encode(c)).error));
    constexpr float tiny = std::numeric_limits<float>::denorm_min();
    Case d{3, Metric::l2, {tiny, 0, 0}, {0, 0, 0}, {1, 1, 1}};
    EXPECT_TRUE(std::isinf(score(d, encode(d)).error));
}

TEST_P(RefinementTest, AZeroQueryIsExactButForTheError) {
    Case c = random_case(random);
    c.query.assign(c.dims, 0);
    const RefinedDistance refined = score(c, encode(c));
    EXPECT_LE(std::fabs(refined.distance - c.distance()), refined.error);
}

PGWARP_EVERY_TARGET(RefinementTest);

}  // namespace
}  // namespace pgwarp
