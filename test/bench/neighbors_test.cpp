// Exact neighbors against a scalar float64 reference, and what counts as a hit.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "bench/ground_truth.h"
#include "bench/neighbors.h"
#include "bench/random.h"
#include "bench/recall.h"
#include "test/bench/files.h"

namespace pgwarp::bench {
namespace {

Vectors random_vectors(size_t rows, size_t dims, uint64_t seed, double offset = 0) {
    Random random(seed);
    Vectors vectors{rows, dims, std::vector<float>(rows * dims)};
    for (float& value : vectors.values) value = float(offset + random.uniform());
    return vectors;
}

std::vector<int32_t> naive_neighbors(Metric metric, const Vectors& base,
                                     std::span<const float> query, size_t k) {
    std::vector<std::pair<double, int32_t>> ranked;
    for (size_t row = 0; row < base.rows; row++)
        ranked.emplace_back(distance(metric, query, base.row(row)), int32_t(row));
    std::sort(ranked.begin(), ranked.end());
    std::vector<int32_t> rows;
    for (size_t i = 0; i < std::min(k, base.rows); i++) rows.push_back(ranked[i].second);
    return rows;
}

struct NeighborsCase {
    Metric metric = Metric::l2;
    size_t rows = 5000;  // more than one block of rows, the last one odd
    size_t dims = 17;
    size_t k = 10;
    double offset = 0;
};

void PrintTo(const NeighborsCase& given, std::ostream* out) {
    const NeighborsCase plain;
    *out << metric_name(given.metric);
    if (given.rows != plain.rows) *out << " rows=" << given.rows;
    if (given.dims != plain.dims) *out << " dims=" << given.dims;
    if (given.k != plain.k) *out << " k=" << given.k;
    if (given.offset != plain.offset) *out << " offset=" << given.offset;
}

class NeighborsTest : public testing::TestWithParam<NeighborsCase> {};

TEST_P(NeighborsTest, EqualTheReference) {
    const NeighborsCase given = GetParam();
    Vectors base = random_vectors(given.rows, given.dims, 1, given.offset);
    std::copy_n(base.values.begin(), given.dims, base.values.end() - ptrdiff_t(given.dims));
    const Vectors queries = random_vectors(70, given.dims, 2, given.offset);
    const RowNumbers found = exact_neighbors(given.metric, base, queries, given.k, 3);
    ASSERT_EQ(found.rows, queries.rows);
    ASSERT_EQ(found.width, std::min(given.k, given.rows));
    for (size_t i = 0; i < queries.rows; i++) {
        const auto row = found.row(i);
        EXPECT_EQ(std::vector<int32_t>(row.begin(), row.end()),
                  naive_neighbors(given.metric, base, queries.row(i), given.k))
            << "query " << i;
    }
}

INSTANTIATE_TEST_SUITE_P(
    , NeighborsTest,
    testing::Values(NeighborsCase{}, NeighborsCase{.metric = Metric::inner_product},
                    NeighborsCase{.metric = Metric::cosine}, NeighborsCase{.k = 1},
                    NeighborsCase{.rows = 7, .k = 10}, NeighborsCase{.rows = 1, .dims = 1},
                    NeighborsCase{.dims = 784, .k = 100},
                    // Far from the origin float32 scores lose most of their digits.
                    NeighborsCase{.offset = 100},
                    NeighborsCase{.metric = Metric::cosine, .offset = 3}));

TEST(Neighbors, RefuseOtherDimensions) {
    EXPECT_THROW(
        exact_neighbors(Metric::l2, random_vectors(3, 2, 1), random_vectors(3, 3, 1), 1, 1),
        std::runtime_error);
}

class GroundTruthTest : public FileTest {};

TEST_F(GroundTruthTest, IsKeptUntilTheDataChanges) {
    Dataset dataset{"set", random_vectors(300, 4, 1), random_vectors(20, 4, 2), false};
    auto files = [&] {
        const auto all = std::filesystem::directory_iterator(path(""));
        return std::distance(begin(all), end(all));
    };
    const RowNumbers first = ground_truth(Metric::l2, dataset, 10, path(""));
    EXPECT_EQ(first.width, 100u);
    EXPECT_EQ(ground_truth(Metric::l2, dataset, 20, path("")).values, first.values);
    EXPECT_EQ(files(), 1);
    dataset.base.values[0] = 9;
    ground_truth(Metric::l2, dataset, 10, path(""));
    EXPECT_EQ(files(), 2);
    ground_truth(Metric::cosine, dataset, 10, path(""));
    EXPECT_EQ(files(), 3);
}

// One dimension: rows at 0, 1, -1, 2, 2, 3. The query is at 0.
class HitsTest : public testing::Test {
  protected:
    const Vectors base_{6, 1, {0, 1, -1, 2, 2, 3}};
    const std::vector<float> query_{0};
    const std::vector<int32_t> truth_{0, 1, 2, 3, 4, 5};

    size_t hits(std::vector<int32_t> returned, size_t k) const {
        return count_hits(Metric::l2, base_, query_, truth_, returned, k);
    }
};

TEST_F(HitsTest, CountsTrueNeighbors) {
    EXPECT_EQ(hits({0, 1, 2}, 3), 3u);
    EXPECT_EQ(hits({2, 0, 1}, 3), 3u);
    EXPECT_EQ(hits({0, 5, 1}, 3), 2u);
    EXPECT_EQ(hits({5}, 3), 0u);
    EXPECT_EQ(hits({}, 3), 0u);
}

TEST_F(HitsTest, ATieAtTheLastPlaceIsAHit) {
    EXPECT_EQ(hits({0, 2}, 2), 2u);
    EXPECT_EQ(hits({0, 1, 2, 4}, 4), 4u);
    EXPECT_EQ(hits({0, 1, 2, 5}, 4), 3u);
}

TEST_F(HitsTest, ARepeatedRowCountsOnce) {
    EXPECT_EQ(hits({0, 0, 0}, 3), 1u);
}

TEST_F(HitsTest, RowsAfterTheKthDoNotCount) {
    EXPECT_EQ(hits({5, 0}, 1), 0u);
}

TEST_F(HitsTest, AskingForMoreThanThereIs) {
    EXPECT_EQ(hits({0, 1, 2, 3, 4, 5}, 10), 6u);
}

}  // namespace
}  // namespace pgwarp::bench
