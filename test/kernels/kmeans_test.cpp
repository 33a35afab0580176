// k-means against float64, and on data that gives it little to hold on to.

#include "kernels/draw_rows.h"
#include "kernels/kmeans.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/reference.h"

namespace pgwarp {
namespace {

struct Problem {
    size_t count;
    uint32_t dims;
    uint32_t clusters;
    std::vector<float> rows;       // (count)(dims)
    std::vector<float> centroids;  // (clusters)(dims)

    const float* row(size_t i) const { return rows.data() + i * dims; }
    const float* centroid(size_t c) const { return centroids.data() + c * dims; }
    double squared_distance(size_t i, size_t c) const {
        return reference_squared_l2(row(i), centroid(c), dims);
    }
    uint32_t reference_nearest(size_t i) const {
        uint32_t best = 0;
        for (uint32_t c = 1; c < clusters; ++c)
            if (squared_distance(i, c) < squared_distance(i, best)) best = c;
        return best;
    }
    double reference_objective() const {
        double sum = 0;
        for (size_t i = 0; i < count; ++i) sum += squared_distance(i, reference_nearest(i));
        return sum / static_cast<double>(count);
    }
    double step(Workers& workers) {
        return kmeans_step(workers, rows.data(), count, dims, clusters, centroids.data());
    }
    void start(uint64_t seed) {
        centroids.resize(size_t{clusters} * dims);
        kmeans_start(rows.data(), count, dims, clusters, seed, centroids.data());
    }
};

std::ostream& operator<<(std::ostream& out, const Problem& p) {
    return out << p.count << " rows, " << p.dims << " dims, " << p.clusters << " clusters";
}

struct Assigned {
    std::vector<uint32_t> nearest;
    std::vector<float> distances;
};

Assigned assign(const Problem& p, int threads = 1, bool with_distances = true) {
    Workers workers(threads);
    Assigned result{std::vector<uint32_t>(p.count, 0xffffffff),
                    std::vector<float>(with_distances ? p.count : 0)};
    assign_nearest(workers,
                   {p.rows.data(), p.count, p.dims, p.centroids.data(), p.clusters,
                    result.nearest.data(), with_distances ? result.distances.data() : nullptr});
    return result;
}

// The chosen centroid may be another than the float64 one only where the two are as near as
// rounding.
void expect_nearest(const Problem& p, const Assigned& found) {
    SCOPED_TRACE(testing::Message() << p);
    for (size_t i = 0; i < p.count; ++i) {
        const uint32_t c = found.nearest[i];
        ASSERT_LT(c, p.clusters);
        const uint32_t best = p.reference_nearest(i);
        const double distance = p.squared_distance(i, c);
        const double off = expansion_tolerance(p.row(i), p.centroid(c), p.dims) +
                           expansion_tolerance(p.row(i), p.centroid(best), p.dims);
        ASSERT_LE(distance, p.squared_distance(i, best) + off) << "row " << i;
        ASSERT_NEAR(found.distances[i], distance, off) << "row " << i;
    }
}

Problem random_problem(std::mt19937& random, size_t most_work) {
    Problem p;
    do {
        p.count = between(random, 1, 400);
        p.dims = static_cast<uint32_t>(between(random, 1, 300));
        p.clusters = static_cast<uint32_t>(between(random, 1, between(random, 1, 1200)));
    } while (p.count * p.dims * p.clusters > most_work);
    p.rows = clustered_rows(random, p.count, p.dims, between(random, 1, 30));
    p.centroids = clustered_rows(random, p.clusters, p.dims, between(random, 1, 30));
    return p;
}

class Kmeans : public EveryTarget {};

TEST_P(Kmeans, AssignmentIsNearestInFloat64) {
    for (int i = 0; i < 40; ++i) {
        const Problem p = random_problem(random, 4'000'000);
        const Assigned found = assign(p);
        expect_nearest(p, found);
        EXPECT_EQ(assign(p, 1, false).nearest, found.nearest);
        EXPECT_EQ(assign(p, 4).nearest, found.nearest);
        EXPECT_EQ(assign(p, 4).distances, found.distances);
    }
}

// Parents of the clusters of a problem, each with the mean of the next few.
struct SomeParents {
    std::vector<float> centroids;
    std::vector<uint32_t> first{0};

    SomeParents(const Problem& p, uint32_t of_each) {
        while (first.back() < p.clusters) {
            const uint32_t begin = first.back();
            first.push_back(std::min(p.clusters, begin + of_each));
            for (uint32_t d = 0; d < p.dims; ++d) {
                double sum = 0;
                for (uint32_t c = begin; c < first.back(); ++c)
                    sum += p.centroids[size_t{c} * p.dims + d];
                centroids.push_back(static_cast<float>(sum / (first.back() - begin)));
            }
        }
    }
    Parents get() const {
        return {static_cast<uint32_t>(first.size() - 1), centroids.data(), first.data()};
    }
};

Assigned assign_by(const Problem& p, const SomeParents& parents, int threads) {
    Workers workers(threads);
    Assigned result{std::vector<uint32_t>(p.count, 0xffffffff), std::vector<float>(p.count)};
    assign_nearest(workers,
                   {p.rows.data(), p.count, p.dims, p.centroids.data(), p.clusters,
                    result.nearest.data(), result.distances.data()},
                   parents.get());
    return result;
}

// All parents are near where there are few of them.
TEST_P(Kmeans, AssignmentByFewParentsIsNearest) {
    for (int i = 0; i < 20; ++i) {
        const Problem p = random_problem(random, 2'000'000);
        const SomeParents parents(p, p.clusters / 12 + 1);
        const Assigned found = assign_by(p, parents, 1);
        expect_nearest(p, found);
        EXPECT_EQ(assign_by(p, parents, 3).nearest, found.nearest);
        EXPECT_EQ(assign_by(p, parents, 3).distances, found.distances);
    }
}

// Clusters on a line, whose parents lie on it in order: the nearest is one of a near parent.
TEST_P(Kmeans, AssignmentByManyParents) {
    Problem p{700, 5, 3000, {}, {}};
    for (uint32_t c = 0; c < p.clusters; ++c)
        for (uint32_t d = 0; d < p.dims; ++d) p.centroids.push_back(static_cast<float>(c));
    p.rows = normal_floats(random, p.count * p.dims);
    for (float& x : p.rows) x = 1500 + 700 * x;
    for (const uint32_t of_each : {1u, 7u, 100u, 700u})
        expect_nearest(p, assign_by(p, SomeParents(p, of_each), 2));
}

// Around the edges of the tiles that rows and centroids are cut into.
TEST_P(Kmeans, AssignmentAtTheEdgesOfTiles) {
    for (const size_t count : {1, 127, 128, 129, 257})
        for (const uint32_t clusters : {1, 2, 511, 512, 513, 1025}) {
            Problem p{count, 3, clusters, normal_floats(random, count * 3),
                      normal_floats(random, clusters * 3)};
            expect_nearest(p, assign(p));
        }
}

TEST_P(Kmeans, TheLowestOfEqualCentroidsIsTaken) {
    for (int i = 0; i < 20; ++i) {
        Problem p;
        p.count = between(random, 1, 300);
        p.dims = static_cast<uint32_t>(between(random, 1, 40));
        p.clusters = static_cast<uint32_t>(between(random, 2, 1500));
        p.rows = whole_floats(random, p.count * p.dims);
        p.centroids = whole_floats(random, size_t{p.clusters} * p.dims);
        // Some centroids twice and more, far apart and side by side.
        for (uint32_t c = 0; c < p.clusters / 2; ++c)
            std::memcpy(p.centroids.data() + between(random, 0, p.clusters - 1) * p.dims,
                        p.centroids.data() + between(random, 0, p.clusters - 1) * p.dims,
                        p.dims * sizeof(float));
        const Assigned found = assign(p);
        for (size_t row = 0; row < p.count; ++row) {
            const uint32_t best = p.reference_nearest(row);
            ASSERT_EQ(found.nearest[row], best) << p;
            ASSERT_EQ(found.distances[row], p.squared_distance(row, best)) << p;
        }
    }
}

// Scaled by a power of two, data has the same neighbors: also where squares leave the range of a
// float32 at either end.
TEST_P(Kmeans, HugeAndTinyValues) {
    for (const int exponent : {-140, -120, -80, -63, -30, 0, 30, 60, 64, 100, 122}) {
        SCOPED_TRACE(exponent);
        Problem p{150, 33, 20, {}, {}};
        p.rows = clustered_rows(random, p.count, p.dims, p.clusters);
        p.start(1);
        const float scale = std::ldexp(1.0f, exponent);
        // Where most of the precision is lost, only what is left of the data counts.
        for (float& value : p.rows) value *= scale;
        for (float& value : p.centroids) value *= scale;
        const Assigned found = assign(p);
        for (size_t i = 0; i < p.count; ++i) {
            const uint32_t best = p.reference_nearest(i);
            ASSERT_LE(p.squared_distance(i, found.nearest[i]),
                      p.squared_distance(i, best) +
                          expansion_tolerance(p.row(i), p.centroid(best), p.dims) * 2)
                << "row " << i;
            ASSERT_FALSE(std::isnan(found.distances[i]));
            ASSERT_GE(found.distances[i], 0);
        }
        Workers workers(2);
        for (int step = 0; step < 3; ++step) {
            const double objective = p.reference_objective();
            const double returned = p.step(workers);
            if (objective < 1e37 && objective > 1e-30) {
                ASSERT_NEAR(returned, objective, objective * 1e-3);
            }
            for (const float value : p.centroids) ASSERT_TRUE(std::isfinite(value));
        }
    }
}

// Norms of a million and distances of a few: a product of norms has nothing left of these.
TEST_P(Kmeans, FarFromTheOrigin) {
    Problem p{300, 40, 25, {}, {}};
    p.rows = clustered_rows(random, p.count, p.dims, p.clusters);
    p.start(1);
    for (float& value : p.rows) value += 5000;
    for (float& value : p.centroids) value += 5000;
    const double off = 0.01;  // the squared spread of the centroids is about 4,000
    Workers workers(1);
    double last = std::numeric_limits<double>::infinity();
    for (int step = 0; step < 5; ++step) {
        const Assigned found = assign(p);
        for (size_t i = 0; i < p.count; ++i) {
            const double least = p.squared_distance(i, p.reference_nearest(i));
            ASSERT_LE(p.squared_distance(i, found.nearest[i]), least + off) << "row " << i;
            ASSERT_NEAR(found.distances[i], least, off) << "row " << i;
        }
        const double objective = p.step(workers);
        EXPECT_LE(objective, last * 1.001);
        last = objective;
    }
}

// What becomes of a row beyond all measure is not said, but it must not take others with it.
TEST_P(Kmeans, OneHugeRowAmongOthers) {
    for (const float huge : {1e20f, 3e38f, std::numeric_limits<float>::infinity()}) {
        Problem p{200, 20, 7, {}, {}};
        p.rows = clustered_rows(random, p.count, p.dims, p.clusters);
        p.start(1);
        const std::vector<uint32_t> before = assign(p).nearest;
        for (uint32_t d = 0; d < p.dims; ++d) p.rows[50 * p.dims + d] = d % 2 ? huge : -huge;
        const std::vector<uint32_t> after = assign(p).nearest;
        for (size_t i = 0; i < p.count; ++i) {
            ASSERT_LT(after[i], p.clusters);
            if (i != 50) {
                EXPECT_EQ(after[i], before[i]) << "row " << i;
            }
        }
    }
}

TEST_P(Kmeans, StartIsDrawnFromDifferentRows) {
    for (int i = 0; i < 20; ++i) {
        Problem p;
        p.count = between(random, 1, 500);
        p.dims = static_cast<uint32_t>(between(random, 1, 9));
        p.clusters = static_cast<uint32_t>(between(random, 1, p.count));
        p.rows.resize(p.count * p.dims);
        std::iota(p.rows.begin(), p.rows.end(), 0.0f);
        p.start(i);
        const std::vector<float> first = p.centroids;
        std::set<float> different;
        for (uint32_t c = 0; c < p.clusters; ++c) {
            const auto row = static_cast<size_t>(p.centroid(c)[0]) / p.dims;
            ASSERT_LT(row, p.count);
            EXPECT_EQ(std::memcmp(p.centroid(c), p.row(row), p.dims * sizeof(float)), 0);
            different.insert(p.centroid(c)[0]);
        }
        EXPECT_EQ(different.size(), p.clusters) << p;
        p.start(i);
        EXPECT_EQ(p.centroids, first);
    }
    // Another seed draws others.
    Problem p{500, 1, 20, normal_floats(random, 500), {}};
    p.start(1);
    const std::vector<float> first = p.centroids;
    p.start(2);
    EXPECT_NE(p.centroids, first);
}

TEST_P(Kmeans, StartRepeatsTheRowsWhereTheyAreFewer) {
    Problem p{3, 2, 8, {1, 2, 3, 4, 5, 6}, {}};
    p.start(5);
    std::multiset<float> firsts;
    for (uint32_t c = 0; c < 8; ++c) {
        firsts.insert(p.centroid(c)[0]);
        EXPECT_EQ(std::memcmp(p.centroid(c), p.centroid(c % 3), 2 * sizeof(float)), 0);
    }
    for (const float value : {1.0f, 3.0f, 5.0f}) EXPECT_GE(firsts.count(value), 2u);
}

TEST_P(Kmeans, AStepMovesCentroidsToTheMeansOfTheirRows) {
    Workers workers(2);
    for (int i = 0; i < 15; ++i) {
        Problem p = random_problem(random, 1'000'000);
        const Assigned found = assign(p);
        const Problem before = p;
        const double objective = p.step(workers);

        std::vector<double> sums(p.centroids.size());
        std::vector<size_t> sizes(p.clusters);
        double expected = 0, tolerance = 0;
        for (size_t row = 0; row < p.count; ++row) {
            const uint32_t c = found.nearest[row];
            ++sizes[c];
            for (uint32_t d = 0; d < p.dims; ++d) sums[size_t{c} * p.dims + d] += p.row(row)[d];
            expected += before.squared_distance(row, c);
            tolerance += expansion_tolerance(p.row(row), before.centroid(c), p.dims);
        }
        EXPECT_NEAR(objective * static_cast<double>(p.count), expected, tolerance) << p;
        // A cluster that was split into an empty one is not at its mean.
        if (std::count(sizes.begin(), sizes.end(), 0) > 0) continue;
        for (uint32_t c = 0; c < p.clusters; ++c)
            for (uint32_t d = 0; d < p.dims; ++d) {
                const double mean = sums[size_t{c} * p.dims + d] / static_cast<double>(sizes[c]);
                ASSERT_NEAR(p.centroid(c)[d], mean, std::fabs(mean) * 0x1p-23) << p;
            }
    }
}

TEST_P(Kmeans, TheObjectiveNeverRises) {
    Workers workers(2);
    for (int i = 0; i < 10; ++i) {
        Problem p;
        p.count = between(random, 50, 600);
        p.dims = static_cast<uint32_t>(between(random, 1, 60));
        p.clusters = static_cast<uint32_t>(between(random, 2, 40));
        p.rows = clustered_rows(random, p.count, p.dims, between(random, 1, 50));
        p.start(i);
        double last = std::numeric_limits<double>::infinity();
        for (int step = 0; step < 12; ++step) {
            const double objective = p.step(workers);
            EXPECT_LE(objective, last * (1 + 1e-4)) << p << ", step " << step;
            last = objective;
        }
    }
}

// All centroids at one place: one cluster has every row and the others are empty. Splitting must
// bring all of them to use, wherever the data lies.
TEST_P(Kmeans, EmptyClustersAreFilled) {
    Workers workers(2);
    for (const float shift : {0.0f, 1.0f, -300.0f})
        for (const uint32_t dims : {1, 2, 17, 100}) {
            SCOPED_TRACE(testing::Message() << dims << " dims around " << shift);
            Problem p{640, dims, 16, {}, {}};
            p.rows = clustered_rows(random, p.count, p.dims, 16);
            for (float& value : p.rows) value += shift;
            for (uint32_t c = 0; c < p.clusters; ++c)
                p.centroids.insert(p.centroids.end(), p.row(0), p.row(0) + dims);
            const double before = p.reference_objective();
            for (int step = 0; step < 12; ++step) p.step(workers);
            const std::vector<uint32_t> nearest = assign(p).nearest;
            EXPECT_EQ(std::set<uint32_t>(nearest.begin(), nearest.end()).size(), p.clusters);
            EXPECT_LT(p.reference_objective(), before / 2);
        }
}

// Data whose mean is zero in every dimension: there is nothing to scale up and down.
TEST_P(Kmeans, AClusterAroundZeroCanBeSplit) {
    Workers workers(1);
    for (const uint32_t dims : {1, 2, 5}) {
        Problem p{8, dims, 2, std::vector<float>(8 * dims), std::vector<float>(2 * dims, 0.0f)};
        for (size_t i = 0; i < p.rows.size(); ++i) p.rows[i] = i / dims % 2 ? 1.0f : -1.0f;
        for (int step = 0; step < 6; ++step) p.step(workers);
        EXPECT_EQ(p.reference_objective(), 0) << dims << " dims";
    }
}

// Most rows are equal and need one centroid; the others get what is left.
TEST_P(Kmeans, ACrowdOfEqualRowsDoesNotUseUpTheCentroids) {
    Workers workers(1);
    Problem p{1000, 10, 32, std::vector<float>(10000), {}};
    const std::vector<float> others = clustered_rows(random, 60, p.dims, 31);
    std::copy(others.begin(), others.end(), p.rows.begin());
    p.start(1);
    for (int step = 0; step < 12; ++step) p.step(workers);
    const std::vector<uint32_t> nearest = assign(p).nearest;
    EXPECT_GE(std::set<uint32_t>(nearest.begin(), nearest.end()).size(), 24u);
}

TEST_P(Kmeans, ConstantData) {
    Workers workers(2);
    for (const float value : {0.0f, 1.0f, -3.5f}) {
        Problem p{100, 7, 9, std::vector<float>(700, value), {}};
        p.start(1);
        for (int step = 0; step < 5; ++step) EXPECT_NEAR(p.step(workers), 0, 1e-4);
        EXPECT_NEAR(p.reference_objective(), 0, 1e-4);
        for (const float element : p.centroids) EXPECT_TRUE(std::isfinite(element));
    }
}

TEST_P(Kmeans, FewerRowsThanClusters) {
    Workers workers(2);
    Problem p{5, 11, 40, normal_floats(random, 55), {}};
    p.start(1);
    for (int step = 0; step < 4; ++step) p.step(workers);
    EXPECT_NEAR(p.reference_objective(), 0, 1e-9);
}

TEST_P(Kmeans, OneRowOneCluster) {
    Workers workers(2);
    Problem p{1, 3, 1, {1, 2, 3}, {4, 5, 6}};
    EXPECT_NEAR(p.step(workers), 27, 1e-4);
    EXPECT_EQ(p.centroids, p.rows);
    EXPECT_NEAR(p.step(workers), 0, 1e-5);

    Problem mean{3, 1, 1, {1, 2, 6}, {100}};
    mean.step(workers);
    EXPECT_EQ(mean.centroids[0], 3);
}

TEST_P(Kmeans, ThreadsDoNotChangeTheResult) {
    for (int i = 0; i < 8; ++i) {
        const Problem p = random_problem(random, 4'000'000);
        std::vector<std::vector<float>> centroids;
        std::vector<double> objectives;
        for (const int threads : {1, 3, 4}) {
            Workers workers(threads);
            Problem mine = p;
            double objective = 0;
            for (int step = 0; step < 3; ++step) objective = mine.step(workers);
            centroids.push_back(mine.centroids);
            objectives.push_back(objective);
        }
        EXPECT_EQ(centroids[1], centroids[0]) << p;
        EXPECT_EQ(centroids[2], centroids[0]) << p;
        EXPECT_EQ(objectives[1], objectives[0]) << p;
        EXPECT_EQ(objectives[2], objectives[0]) << p;
    }
}

TEST_P(Kmeans, FewRowsAreDrawnAsManyAre) {
    for (int i = 0; i < 200; ++i) {
        const size_t count = 1 + random() % 1000;
        const size_t draws = 1 + random() % (count + 5);
        const uint64_t seed = random();
        const std::vector<uint32_t> many = draw_rows(count, draws, seed);
        EXPECT_EQ(draw_few_rows(count, draws, seed),
                  std::vector<uint64_t>(many.begin(), many.end()))
            << draws << " of " << count;
    }
}

std::vector<float> pass_by_blocks(const Problem& p, size_t block) {
    Workers workers(2);
    KmeansPass pass(p.dims, p.clusters, p.centroids.data());
    size_t added = 0;
    for (size_t first = 0; first < p.count; first += block) {
        const size_t count = std::min(block, p.count - first);
        pass.add(workers, p.row(first), count);
        added += count;
        EXPECT_EQ(std::accumulate(pass.sizes().begin(), pass.sizes().end(), size_t{0}), added);
    }
    std::vector<float> moved(p.centroids.size());
    pass.finish(moved.data());
    return moved;
}

TEST_P(Kmeans, APassOverBlocksIsAStep) {
    Workers workers(2);
    for (int i = 0; i < 20; ++i) {
        const Problem p = random_problem(random, 1'000'000);
        SCOPED_TRACE(testing::Message() << p);
        const std::vector<float> whole = pass_by_blocks(p, p.count);
        EXPECT_EQ(pass_by_blocks(p, 1 + random() % p.count), whole);

        Problem stepped = p;
        stepped.step(workers);
        const Assigned assigned = assign(p);
        std::vector<size_t> sizes(p.clusters);
        for (const uint32_t c : assigned.nearest) ++sizes[c];
        for (uint32_t c = 0; c < p.clusters; ++c)
            for (uint32_t d = 0; d < p.dims && sizes[c] > 0; ++d)
                ASSERT_NEAR(whole[size_t{c} * p.dims + d], stepped.centroid(c)[d],
                            1e-5 * (1 + std::fabs(stepped.centroid(c)[d])));
    }
}

TEST_P(Kmeans, APassFillsEmptyClusters) {
    // Two heaps, and three more centroids to which no row is nearest.
    Problem p{1000, 2, 5, {}, {0, 0, 100, 100, 1e6, 1e6, 2e6, 2e6, 3e6, 3e6}};
    for (size_t i = 0; i < p.count; ++i) {
        const float at = i % 2 ? 100 : 0;
        p.rows.push_back(at + static_cast<float>(i % 17));
        p.rows.push_back(at + static_cast<float>(i % 13));
    }
    for (int i = 0; i < 10; ++i) p.centroids = pass_by_blocks(p, 100);
    std::set<uint32_t> used;
    for (const uint32_t c : assign(p).nearest) used.insert(c);
    EXPECT_EQ(used.size(), p.clusters);
}

TEST_P(Kmeans, AnInterruptedBlockIsNotAdded) {
    volatile std::sig_atomic_t interrupt = 1;
    Workers workers(2, &interrupt);
    Problem p{1000, 5, 7, normal_floats(random, 5000), {}};
    p.start(1);
    KmeansPass pass(p.dims, p.clusters, p.centroids.data());
    EXPECT_THROW(pass.add(workers, p.rows.data(), p.count), Interrupted);
    EXPECT_EQ(std::accumulate(pass.sizes().begin(), pass.sizes().end(), size_t{0}), 0u);
    interrupt = 0;
    pass.add(workers, p.rows.data(), p.count);
    std::vector<float> moved(p.centroids.size());
    pass.finish(moved.data());
    EXPECT_EQ(moved, pass_by_blocks(p, p.count));
}

TEST_P(Kmeans, AnInterruptedStepLeavesTheCentroids) {
    volatile std::sig_atomic_t interrupt = 1;
    Workers workers(2, &interrupt);
    Problem p{4000, 50, 300, normal_floats(random, 200000), {}};
    p.start(1);
    const std::vector<float> before = p.centroids;
    EXPECT_THROW(p.step(workers), Interrupted);
    EXPECT_EQ(p.centroids, before);

    // At any moment: the step either comes to its end or has not touched them.
    Problem whole = p;
    interrupt = 0;
    whole.step(workers);
    for (int i = 0; i < 20; ++i) {
        Problem mine = p;
        interrupt = 0;
        std::thread raise([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(200 * i));
            interrupt = 1;
        });
        try {
            mine.step(workers);
            EXPECT_EQ(mine.centroids, whole.centroids);
        } catch (const Interrupted&) {
            EXPECT_EQ(mine.centroids, before);
        }
        raise.join();
    }
}

PGWARP_EVERY_TARGET(Kmeans);

}  // namespace
}  // namespace pgwarp
