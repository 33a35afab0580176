// Refinement codes against float64: the error that they claim is never exceeded.

#include "kernels/refinement.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/distance.h"
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
        // A row that lies on its levels has an error of rounding alone.
        EXPECT_NEAR(code.head.error, std::sqrt(error), 1e-4 * std::sqrt(error) + 1e-6 * most);
        EXPECT_NEAR(code.head.norm, std::sqrt(norm), 1e-4 * std::sqrt(norm));
        const double centroid =
            std::sqrt(reference_product(c.centroid.data(), c.centroid.data(), c.dims));
        const double offset = has_norms(c.metric) ? norm + 2 * product + error : centroid;
        const double magnitude = has_norms(c.metric) ? norm + std::sqrt(norm) * centroid : centroid;
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

// --- as a scan sees it: forms, list terms and exact distances in the arithmetic of the extension

std::vector<float> form_of(Metric metric, std::vector<float> vector) {
    if (!normalizes(metric)) return vector;
    const double norm = std::sqrt(squared_norm(vector.data(), vector.size()));
    for (float& value : vector) value = norm > 0 ? static_cast<float>(value / norm) : 0;
    return vector;
}

// In units of refined distances. A row without a distance comes last.
double distance_of_scan(Metric metric, const std::vector<float>& query,
                        const std::vector<float>& row) {
    const auto dims = row.size();
    double distance = 0;
    if (metric == Metric::l2) {
        distance = squared_l2_distance(query.data(), row.data(), dims);
    } else if (metric == Metric::inner_product) {
        distance = -double{dot_product(query.data(), row.data(), dims)};
    } else {
        const CosineParts parts = cosine_parts(query.data(), row.data(), dims);
        distance = 2 - 2 * (parts.product /
                            std::sqrt(double{parts.squared_norm_a} * parts.squared_norm_b));
    }
    return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}

// A number of any magnitude that a float has. Cosine distances of vectors whose squared norms a
// float does not hold are nothing to compare with.
float any_magnitude(std::mt19937& random, Metric metric) {
    const int most = normalizes(metric) ? 35 : 135;
    return std::ldexp(1.0f, static_cast<int>(between(random, 0, 2 * most)) - most);
}

std::vector<float> hostile_vector(std::mt19937& random, size_t dims, float magnitude) {
    std::vector<float> values(dims);
    switch (between(random, 0, 4)) {
        case 0:  // all errors of a sum have one sign
            std::fill(values.begin(), values.end(),
                      magnitude * (1 + 0.001f * static_cast<float>(between(random, 0, 999))));
            break;
        case 1:  // one element is far larger than the others
            values = normal_floats(random, dims, magnitude * 1e-4f);
            values[between(random, 0, dims - 1)] = magnitude;
            break;
        case 2:
            break;
        default:
            values = normal_floats(random, dims, magnitude);
    }
    return values;
}

struct HostileCase {
    Metric metric;
    std::vector<float> row, centroid, query;
};

HostileCase hostile_case(std::mt19937& random) {
    const auto dims =
        between(random, 0, 3) ? between(random, 1, 100) : between(random, 100, max_refined_dims);
    const Metric metric = metrics[between(random, 0, 2)];
    const float magnitude = between(random, 0, 1) ? 1 : any_magnitude(random, metric);
    const auto vector = [&](float relative) {
        return hostile_vector(random, dims, magnitude * relative);
    };
    constexpr float steps[] = {0, 1e-7f, 1e-5f, 1e-3f, 1};
    // Far from the origin, and near each other, or not.
    const auto near = [&](std::vector<float> to) {
        const std::vector<float> step = vector(steps[between(random, 0, 4)]);
        for (size_t d = 0; d < dims; ++d) to[d] += step[d];
        return to;
    };
    HostileCase c{metric, {}, vector(1), {}};
    c.row = near(c.centroid);
    switch (between(random, 0, 3)) {
        case 0:
            c.query = near(c.centroid);
            break;
        case 1:
            c.query = near(c.row);
            break;
        case 2:  // all products cancel each other
            c.query = c.centroid;
            for (size_t d = 0; d < dims; d += 2) c.query[d] = -c.query[d];
            break;
        default:
            c.query = vector(1);
    }
    return c;
}

TEST_P(RefinementTest, NoRowIsNearerThanItsBoundWhateverTheValues) {
    int finite = 0;
    for (int round = 0; round < 5000; ++round) {
        const HostileCase c = hostile_case(random);
        const auto dims = static_cast<uint32_t>(c.row.size());
        const std::vector<float> row = form_of(c.metric, c.row);
        const std::vector<float> centroid = form_of(c.metric, c.centroid);
        const std::vector<float> query = form_of(c.metric, c.query);
        const Rows centroids{centroid.data(), dims, 1};
        float term = 0;
        if (has_norms(c.metric))
            squared_l2_distances(query.data(), centroids, dims, &term);
        else
            dot_products(query.data(), centroids, dims, &term);
        if (!has_norms(c.metric)) term = -term;
        if (std::isnan(term)) term = std::numeric_limits<float>::infinity();
        std::vector<int8_t> codes(dims);
        std::vector<int16_t> values(dims);
        const RefinementHead head =
            encode_refinement(c.metric, row.data(), centroid.data(), dims, codes.data());
        const RefinedDistance refined =
            refined_distance(make_refinement_query(c.metric, query.data(), dims, values.data()),
                             term, head, codes.data());
        const double least = double{refined.distance} - refined.error;
        finite += std::isfinite(refined.error);
        EXPECT_LE(least, distance_of_scan(c.metric, c.query, c.row))
            << "round " << round << ", " << dims << " dimensions, " << sql_name(c.metric)
            << ", distance " << refined.distance << ", error " << refined.error;
    }
    EXPECT_GT(finite, 2500);
}

PGWARP_EVERY_TARGET(RefinementTest);

}  // namespace
}  // namespace pgwarp
