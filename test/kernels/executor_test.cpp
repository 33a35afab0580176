// The executor's interface: exact search against float64, and the rest against the functions
// behind it.

#include "kernels/executor.h"

#include "kernels/kmeans.h"
#include "kernels/product_quantizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/reference.h"

namespace pgwarp {
namespace {

constexpr Metric metrics[] = {Metric::l2, Metric::inner_product, Metric::cosine};
constexpr float infinity = std::numeric_limits<float>::infinity();

struct Search {
    size_t queries;
    size_t count;
    uint32_t dims;
    Metric metric;
    uint32_t k;
    std::vector<float> query_rows;  // (queries)(dims)
    std::vector<float> rows;        // (count)(dims)
    std::vector<uint64_t> ids;      // (count)

    Search(std::mt19937& random, size_t queries_, size_t count_, uint32_t dims_, Metric metric_,
           uint32_t k_)
        : queries(queries_), count(count_), dims(dims_), metric(metric_), k(k_), ids(count_) {
        // Any order: ids are not places.
        std::iota(ids.begin(), ids.end(), uint64_t{1} << 40);
        std::shuffle(ids.begin(), ids.end(), random);
    }
    const float* query(size_t q) const { return query_rows.data() + q * dims; }
    const float* row(size_t r) const { return rows.data() + r * dims; }
    double distance(size_t q, size_t r) const {
        return metric == Metric::inner_product ? -reference_product(query(q), row(r), dims)
                                               : reference_squared_l2(query(q), row(r), dims);
    }
    // What a distance may be off by in float32: relative to its own terms, and not to the norms.
    double rounding(size_t q, size_t r) const {
        double terms = 0;
        for (uint32_t d = 0; d < dims; ++d) {
            const double a = query(q)[d], b = row(r)[d];
            terms += metric == Metric::inner_product ? std::fabs(a * b) : (a - b) * (a - b);
        }
        return terms * (4 + 4 * std::sqrt(static_cast<double>(dims))) * 0x1p-24;
    }
    std::vector<std::pair<double, uint64_t>> sorted(size_t q) const {
        std::vector<std::pair<double, uint64_t>> all(count);
        for (size_t r = 0; r < count; ++r) all[r] = {distance(q, r), ids[r]};
        std::sort(all.begin(), all.end());
        return all;
    }
    size_t row_of(uint64_t id) const {
        return static_cast<size_t>(std::find(ids.begin(), ids.end(), id) - ids.begin());
    }
    std::vector<Neighbor> unset_neighbors() const {
        return std::vector<Neighbor>(queries * k, Neighbor{infinity, 0});
    }
    // One block of the rows, into what was found before.
    void search_block(Executor& executor, size_t begin, size_t end,
                      std::vector<Neighbor>& nearest) const {
        executor.exact_search({query_rows.data(), queries, row(begin), end - begin,
                               ids.data() + begin, dims, metric, k, nearest.data()});
    }
    std::vector<Neighbor> run(int threads = 1) const {
        auto nearest = unset_neighbors();
        search_block(*make_cpu_executor(threads, {}), 0, count, nearest);
        return nearest;
    }
};

std::ostream& operator<<(std::ostream& out, const Search& s) {
    return out << s.queries << " queries, " << s.count << " rows, " << s.dims << " dims, k " << s.k
               << ", metric " << static_cast<int>(s.metric);
}

Search random_search(std::mt19937& random) {
    Search s(random, between(random, 1, 150), between(random, 1, 1200),
             static_cast<uint32_t>(between(random, 1, 120)), metrics[between(random, 0, 2)],
             static_cast<uint32_t>(between(random, 1, 40)));
    s.query_rows = normal_floats(random, s.queries * s.dims);
    s.rows = normal_floats(random, s.count * s.dims);
    return s;
}

// Whole numbers: every distance is exact and most are shared by several rows.
Search whole_search(std::mt19937& random) {
    Search s = random_search(random);
    s.query_rows = whole_floats(random, s.queries * s.dims, 1);
    s.rows = whole_floats(random, s.count * s.dims, 1);
    return s;
}

void expect_equal(const std::vector<Neighbor>& found, const std::vector<Neighbor>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i].distance, expected[i].distance) << "place " << i;
        ASSERT_EQ(found[i].id, expected[i].id) << "place " << i;
    }
}

class CpuExecutor : public EveryTarget {};

TEST_P(CpuExecutor, SearchAgreesWithFloat64) {
    for (int i = 0; i < 15; ++i) {
        const Search s = random_search(random);
        SCOPED_TRACE(testing::Message() << s);
        const std::vector<Neighbor> found = s.run();
        for (size_t q = 0; q < s.queries; ++q) {
            const auto all = s.sorted(q);
            for (uint32_t at = 0; at < s.k; ++at) {
                const Neighbor& neighbor = found[q * s.k + at];
                if (at >= s.count) {
                    ASSERT_EQ(neighbor.distance, infinity);
                    ASSERT_EQ(neighbor.id, 0u);
                    continue;
                }
                const size_t row = s.row_of(neighbor.id);
                ASSERT_LT(row, s.count);
                const double off = s.rounding(q, row);
                ASSERT_NEAR(neighbor.distance, s.distance(q, row), off);
                ASSERT_NEAR(neighbor.distance, all[at].first,
                            off + s.rounding(q, s.row_of(all[at].second)));
                if (at > 0) {
                    ASSERT_LE(found[q * s.k + at - 1].distance, neighbor.distance);
                }
            }
        }
    }
}

TEST_P(CpuExecutor, TiesAreOrderedById) {
    for (int i = 0; i < 15; ++i) {
        const Search s = whole_search(random);
        SCOPED_TRACE(testing::Message() << s);
        const std::vector<Neighbor> found = s.run();
        for (size_t q = 0; q < s.queries; ++q) {
            const auto all = s.sorted(q);
            for (uint32_t at = 0; at < std::min<size_t>(s.k, s.count); ++at) {
                ASSERT_EQ(found[q * s.k + at].distance, all[at].first);
                ASSERT_EQ(found[q * s.k + at].id, all[at].second);
            }
        }
    }
}

// However the rows are cut into blocks, and in whatever order these come.
TEST_P(CpuExecutor, BlocksMergeInAnyOrder) {
    const auto executor = make_cpu_executor(2, {});
    for (int i = 0; i < 20; ++i) {
        const Search s = i % 2 ? random_search(random) : whole_search(random);
        SCOPED_TRACE(testing::Message() << s);
        const std::vector<Neighbor> expected = s.run();
        std::vector<size_t> cuts = {0, s.count};
        for (int cut = 0; cut < 5; ++cut) cuts.push_back(between(random, 0, s.count));
        std::sort(cuts.begin(), cuts.end());
        std::vector<size_t> order(cuts.size() - 1);
        std::iota(order.begin(), order.end(), size_t{0});
        for (int shuffled = 0; shuffled < 3; ++shuffled) {
            std::shuffle(order.begin(), order.end(), random);
            auto nearest = s.unset_neighbors();
            for (const size_t block : order)
                s.search_block(*executor, cuts[block], cuts[block + 1], nearest);
            expect_equal(nearest, expected);
        }
    }
}

TEST_P(CpuExecutor, ThreadsDoNotChangeTheSearch) {
    for (int i = 0; i < 5; ++i) {
        const Search s = random_search(random);
        expect_equal(s.run(4), s.run(1));
    }
}

// A row that is the query is at no distance from it, and a near one is as near as it is: however
// far from the origin both lie.
TEST_P(CpuExecutor, NearRowsFarFromTheOrigin) {
    Search s(random, 20, 300, 64, Metric::l2, 10);
    s.rows = normal_floats(random, s.count * s.dims);
    for (float& value : s.rows) value += 1000;
    s.query_rows.assign(s.rows.begin(), s.rows.begin() + s.queries * s.dims);
    const std::vector<Neighbor> found = s.run();
    for (size_t q = 0; q < s.queries; ++q) {
        const auto all = s.sorted(q);
        EXPECT_EQ(found[q * s.k].distance, 0);
        for (uint32_t at = 0; at < s.k; ++at) {
            EXPECT_EQ(found[q * s.k + at].id, all[at].second);
            EXPECT_NEAR(found[q * s.k + at].distance, all[at].first, all[at].first * 1e-4);
        }
    }
}

// A distance beyond float32 is far away, and not next to nothing.
TEST_P(CpuExecutor, OverflowIsFarAway) {
    for (const float huge : {1e18f, 1e20f, 3e38f}) {
        Search s(random, 3, 100, 8, Metric::l2, 5);
        s.query_rows = normal_floats(random, s.queries * s.dims);
        s.rows = normal_floats(random, s.count * s.dims);
        for (size_t r = 0; r < s.count; r += 2)
            for (uint32_t d = 0; d < s.dims; ++d)
                s.rows[r * s.dims + d] = d < 4 ? huge : s.query(0)[d] > 0 ? huge : -huge;
        for (const Neighbor& neighbor : s.run())
            EXPECT_EQ(s.row_of(neighbor.id) % 2, 1u) << "a huge row is near";
    }
}

// ... unless the query is there too.
TEST_P(CpuExecutor, HugeRowsCanBeNear) {
    Search s(random, 1, 100, 8, Metric::l2, 3);
    s.rows = normal_floats(random, s.count * s.dims);
    for (uint32_t d = 0; d < s.dims; ++d) s.rows[42 * s.dims + d] = 2e19f + 1e17f * d;
    s.query_rows.assign(s.row(42), s.row(43));
    const std::vector<Neighbor> found = s.run();
    EXPECT_EQ(found[0].id, s.ids[42]);
    EXPECT_EQ(found[0].distance, 0);
    EXPECT_EQ(found[1].distance, infinity);
}

// Sums that overflow to +infinity and -infinity are NaN: such rows are no neighbors.
TEST_P(CpuExecutor, InnerProductsThatAreNotNumbers) {
    Search s(random, 1, 100, 8, Metric::inner_product, 99);
    s.query_rows = std::vector<float>(s.dims, 3e38f);
    s.rows = normal_floats(random, s.count * s.dims, 1e3f);
    for (const Neighbor& neighbor : s.run()) EXPECT_FALSE(std::isnan(neighbor.distance));
}

TEST_P(CpuExecutor, NothingToSearch) {
    Search s(random, 0, 10, 4, Metric::l2, 3);
    s.rows = normal_floats(random, 40);
    EXPECT_TRUE(s.run().empty());
    Search empty(random, 2, 0, 4, Metric::l2, 3);
    empty.query_rows = normal_floats(random, 8);
    for (const Neighbor& neighbor : empty.run()) EXPECT_EQ(neighbor.distance, infinity);
}

TEST_P(CpuExecutor, TrainsAndEncodesAsTheFunctionsDo) {
    const uint32_t dims = 30, lists = 12, m = 6;
    const size_t count = 900;
    const QuantizerShape shape{dims, lists, m, Metric::l2};
    const std::vector<float> rows = clustered_rows(random, count, dims, 15);
    const auto executor = make_cpu_executor(3, {});
    EXPECT_STREQ(executor->name(), "cpu");
    Workers workers(1);

    std::vector<float> mine = rows, theirs = rows;
    const auto data = executor->take(theirs.data(), count, dims);
    std::vector<float> my_centroids(lists * dims), their_centroids(lists * dims);
    kmeans_start(mine.data(), count, dims, lists, 7, my_centroids.data());
    executor->kmeans_start(*data, lists, 7, their_centroids.data());
    for (int step = 0; step < 4; ++step)
        EXPECT_EQ(kmeans_step(workers, mine.data(), count, dims, lists, my_centroids.data()),
                  executor->kmeans_step(*data, lists, their_centroids.data()));
    EXPECT_EQ(their_centroids, my_centroids);

    std::vector<uint32_t> nearest(count);
    assign_nearest(workers,
                   {mine.data(), count, dims, my_centroids.data(), lists, nearest.data(), nullptr});
    subtract_centroids(mine.data(), count, dims, my_centroids.data(), nearest.data());
    executor->make_residuals(*data, lists, their_centroids.data());
    EXPECT_EQ(theirs, mine);

    std::vector<float> my_codebook(dims * codewords), their_codebook(dims * codewords);
    codebook_start(shape, mine.data(), count, 7, my_codebook.data());
    executor->codebook_start(*data, shape, 7, their_codebook.data());
    for (int step = 0; step < 4; ++step)
        EXPECT_EQ(codebook_step(workers, shape, mine.data(), count, my_codebook.data()),
                  executor->codebook_step(*data, shape, their_codebook.data()));
    EXPECT_EQ(their_codebook, my_codebook);

    std::vector<uint32_t> my_lists(count), their_lists(count);
    std::vector<uint8_t> my_codes(count * m), their_codes(count * m);
    std::vector<float> my_offsets(count), their_offsets(count);
    const Quantizer quantizer{shape, my_centroids.data(), my_codebook.data()};
    encode(workers, quantizer,
           {rows.data(), count, my_lists.data(), my_codes.data(), my_offsets.data()});
    executor->encode(quantizer, {rows.data(), count, their_lists.data(), their_codes.data(),
                                 their_offsets.data()});
    EXPECT_EQ(their_lists, my_lists);
    EXPECT_EQ(their_codes, my_codes);
    EXPECT_EQ(their_offsets, my_offsets);
}

TEST_P(CpuExecutor, AnInterruptEndsEverythingAndKeepsTheInputs) {
    volatile std::sig_atomic_t interrupt = 1;
    const auto executor = make_cpu_executor(2, &interrupt);
    const uint32_t dims = 10, lists = 5;
    const QuantizerShape shape{dims, lists, 5, Metric::l2};
    const std::vector<float> rows = normal_floats(random, 400 * dims);
    std::vector<float> data_rows = rows, centroids = normal_floats(random, lists * dims),
                       codebook = normal_floats(random, dims * codewords);
    const std::vector<float> centroids_before = centroids, codebook_before = codebook;
    const auto data = executor->take(data_rows.data(), 400, dims);

    EXPECT_THROW(executor->kmeans_step(*data, lists, centroids.data()), Interrupted);
    EXPECT_THROW(executor->codebook_step(*data, shape, codebook.data()), Interrupted);
    EXPECT_THROW(executor->make_residuals(*data, lists, centroids.data()), Interrupted);
    std::vector<uint32_t> list_of(400);
    std::vector<uint8_t> codes(400 * 5);
    std::vector<float> offsets(400);
    EXPECT_THROW(executor->encode({shape, centroids.data(), codebook.data()},
                                  {rows.data(), 400, list_of.data(), codes.data(), offsets.data()}),
                 Interrupted);
    const std::vector<uint64_t> ids(400);
    std::vector<Neighbor> nearest(3, Neighbor{infinity, 0});
    const ExactSearch search{rows.data(), 1,          rows.data(), 400,           ids.data(),
                             dims,        Metric::l2, 3,           nearest.data()};
    EXPECT_THROW(executor->exact_search(search), Interrupted);
    EXPECT_EQ(data_rows, rows);
    EXPECT_EQ(centroids, centroids_before);
    EXPECT_EQ(codebook, codebook_before);

    interrupt = 0;
    EXPECT_NO_THROW(executor->kmeans_step(*data, lists, centroids.data()));
    EXPECT_NO_THROW(executor->exact_search(search));
}

PGWARP_EVERY_TARGET(CpuExecutor);

}  // namespace
}  // namespace pgwarp
