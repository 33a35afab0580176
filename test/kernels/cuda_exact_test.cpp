// Exact search on the device against float64.

#include "kernels/cuda/executor.h"
#include "kernels/executor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "test/kernels/cuda_fixture.h"

namespace pgwarp::gpu {
namespace {

struct ExactCase {
    uint32_t dims = 128;
    size_t queries = 20;
    size_t rows = 5000;
    uint32_t k = 10;
    Metric metric = Metric::l2;
    float scale = 1;     // of the vectors
    float shift = 0;     // added to all coordinates: large norms, small distances
    size_t pieces = 1;   // calls that the rows come in
    size_t scratch = 0;  // budget

    friend std::ostream& operator<<(std::ostream& out, const ExactCase& c) {
        return out << c.dims << " dims, " << c.queries << " x " << c.rows << ", k " << c.k
                   << ", metric " << static_cast<int>(c.metric) << ", scale " << c.scale
                   << ", shift " << c.shift << ", pieces " << c.pieces;
    }
};

class CudaExact : public CudaTest {
  protected:
    void check_case(const ExactCase& c, std::mt19937& random) {
        const Context context(options(size_t{4} << 30, c.scratch));
        const auto executor = make_executor(context);
        std::vector<float> queries = normal_floats(random, c.queries * c.dims, c.scale);
        std::vector<float> rows = normal_floats(random, c.rows * c.dims, c.scale);
        for (float& x : queries) x += c.shift;
        for (float& x : rows) x += c.shift;
        // Some rows twice: ties.
        for (size_t r = 7; r < c.rows; r += 97)
            std::copy_n(rows.begin() + (r - 7) * c.dims, c.dims, rows.begin() + r * c.dims);
        std::vector<uint64_t> ids(c.rows);
        for (size_t r = 0; r < c.rows; ++r) ids[r] = (uint64_t{r} * 7919 % c.rows) << 20 | 5;
        std::vector<Neighbor> nearest(c.queries * c.k, {std::numeric_limits<float>::infinity(), 0});
        for (size_t piece = 0; piece < c.pieces; ++piece) {
            const size_t begin = c.rows * piece / c.pieces, end = c.rows * (piece + 1) / c.pieces;
            executor->exact_search({queries.data(), c.queries, rows.data() + begin * c.dims,
                                    end - begin, ids.data() + begin, c.dims, c.metric, c.k,
                                    nearest.data()});
        }
        for (size_t q = 0; q < c.queries; ++q)
            check_query(c, queries.data() + q * c.dims, rows, ids, nearest.data() + q * c.k);
    }

    // In the order of float64, up to what float32 cannot tell apart.
    static void check_query(const ExactCase& c, const float* query, const std::vector<float>& rows,
                            const std::vector<uint64_t>& ids, const Neighbor* nearest) {
        std::vector<std::pair<double, uint64_t>> exact(c.rows);
        double largest = 0;
        for (size_t r = 0; r < c.rows; ++r) {
            double sum = 0, magnitude = 0;
            for (uint32_t d = 0; d < c.dims; ++d) {
                const double q = query[d], x = rows[r * c.dims + d];
                const double part = c.metric == Metric::inner_product ? -q * x : (q - x) * (q - x);
                sum += part;
                magnitude += std::fabs(part);
            }
            exact[r] = {sum, ids[r]};
            largest = std::max(largest, magnitude);
        }
        std::sort(exact.begin(), exact.end());
        // The direct sums that decide are off by a few units of the last place of their terms.
        const double tolerance = largest * 2e-6;
        const size_t found = std::min<size_t>(c.k, c.rows);
        for (size_t i = 0; i < found; ++i) {
            ASSERT_NEAR(nearest[i].distance, exact[i].first, tolerance) << c << ", place " << i;
            const auto same = std::find_if(exact.begin(), exact.end(), [&](const auto& e) {
                return e.second == nearest[i].id;
            });
            ASSERT_NE(same, exact.end());
            ASSERT_NEAR(same->first, nearest[i].distance, tolerance) << c << ", place " << i;
            if (i > 0) {
                ASSERT_TRUE(nearest[i - 1].distance < nearest[i].distance ||
                            (nearest[i - 1].distance == nearest[i].distance &&
                             nearest[i - 1].id < nearest[i].id))
                    << c << ", place " << i;
            }
        }
        for (size_t i = found; i < c.k; ++i)
            ASSERT_EQ(nearest[i].distance, std::numeric_limits<float>::infinity()) << c;
    }
};

TEST_F(CudaExact, ShapesOfAllKinds) {
    std::mt19937 random(test_seed());
    for (uint32_t dims : {1u, 2u, 3u, 17u, 100u, 128u, 301u}) {
        ExactCase c;
        c.dims = dims;
        c.rows = small_tests() ? 1500 : 5000;
        check_case(c, random);
        c.metric = Metric::inner_product;
        check_case(c, random);
    }
    for (uint32_t k : {1u, 31u, 32u, 33u, 113u, 1000u, 2048u}) {
        ExactCase c;
        c.dims = 24;
        c.queries = 5;
        c.k = k;
        check_case(c, random);
    }
    for (size_t rows : {1u, 2u, 9u, 10u, 11u}) {
        ExactCase c;
        c.rows = rows;
        check_case(c, random);
    }
}

TEST_F(CudaExact, NumbersOfAllSizes) {
    std::mt19937 random(test_seed());
    for (float scale : {1e-12f, 1e-3f, 200.0f, 1e12f}) {
        ExactCase c;
        c.scale = scale;
        c.rows = 2000;
        check_case(c, random);
    }
    // Norms many times the distances: these are taken from amidst the queries, and candidates are
    // re-scored from the vectors.
    for (float shift : {8.0f, 1000.0f}) {
        ExactCase c;
        c.shift = shift;
        c.rows = 2000;
        check_case(c, random);
    }
}

TEST_F(CudaExact, MergesPieces) {
    std::mt19937 random(test_seed());
    for (size_t pieces : {2u, 5u}) {
        ExactCase c;
        c.pieces = pieces;
        check_case(c, random);
        c.k = 700;
        c.rows = 2000;
        check_case(c, random);
    }
}

TEST_F(CudaExact, SmallScratchSpace) {
    std::mt19937 random(test_seed());
    ExactCase c;
    c.scratch = size_t{2} << 20;
    c.queries = 300;
    c.rows = 4001;
    check_case(c, random);
}

// Vectors for which products are too coarse to choose candidates by.
struct HardCase {
    const char* what;
    uint32_t dims;
    Metric metric;
    std::vector<float> queries, rows;
    size_t pieces = 1;
};

class CudaHardExact : public CudaTest {
  protected:
    static constexpr uint32_t k = 10;

    void check_case(const HardCase& c) {
        const Context context(options());
        const auto executor = make_executor(context);
        const size_t queries = c.queries.size() / c.dims, rows = c.rows.size() / c.dims;
        std::vector<uint64_t> ids(rows);
        for (size_t r = 0; r < rows; ++r) ids[r] = r;
        std::vector<Neighbor> nearest(queries * k, {std::numeric_limits<float>::infinity(), 0});
        for (size_t piece = 0; piece < c.pieces; ++piece) {
            const size_t begin = rows * piece / c.pieces, end = rows * (piece + 1) / c.pieces;
            executor->exact_search({c.queries.data(), queries, c.rows.data() + begin * c.dims,
                                    end - begin, ids.data() + begin, c.dims, c.metric, k,
                                    nearest.data()});
        }
        std::vector<double> exact(rows), sizes(rows);
        for (size_t q = 0; q < queries; ++q) {
            for (size_t r = 0; r < rows; ++r) {
                exact[r] = sizes[r] = 0;
                for (uint32_t d = 0; d < c.dims; ++d) {
                    const double a = c.queries[q * c.dims + d], b = c.rows[r * c.dims + d];
                    const double part =
                        c.metric == Metric::inner_product ? -a * b : (a - b) * (a - b);
                    exact[r] += part;
                    sizes[r] += std::fabs(part);
                }
            }
            std::vector<double> sorted = exact;
            std::nth_element(sorted.begin(), sorted.begin() + k, sorted.end());
            std::sort(sorted.begin(), sorted.begin() + k);
            std::vector<uint64_t> found;
            for (uint32_t i = 0; i < k; ++i) {
                const Neighbor& one = nearest[q * k + i];
                ASSERT_LT(one.id, rows) << c.what << ", query " << q;
                // As far as float32 goes, for this row and not for others; nearly ties may change.
                ASSERT_NEAR(one.distance, exact[one.id], 3e-6 * sizes[one.id])
                    << c.what << ", query " << q << ", place " << i;
                ASSERT_NEAR(one.distance, sorted[i],
                            3e-6 * sizes[one.id] + 4e-5 * std::fabs(sorted[i]))
                    << c.what << ", query " << q << ", place " << i;
                found.push_back(one.id);
            }
            std::sort(found.begin(), found.end());
            ASSERT_EQ(std::adjacent_find(found.begin(), found.end()), found.end())
                << c.what << ", query " << q << ": a row twice";
        }
    }

    // Around 0.5, but for one query or one row.
    static HardCase with_outlier(std::mt19937& random, Metric metric, float query, float row) {
        HardCase c{"an outlier", 24, metric, {}, {}};
        std::uniform_real_distribution<float> uniform(0, 1);
        for (size_t i = 0; i < 60u * c.dims; ++i) c.queries.push_back(uniform(random));
        for (size_t i = 0; i < 3000u * c.dims; ++i) c.rows.push_back(uniform(random));
        if (query != 0) std::fill_n(c.queries.begin() + 3 * c.dims, c.dims, query);
        if (row != 0) std::fill_n(c.rows.begin() + 700 * c.dims, c.dims, row);
        return c;
    }

    // Clumps that are small against the distances between them.
    static HardCase clumps(std::mt19937& random, uint32_t dims, float spread) {
        HardCase c{"clumps", dims, Metric::l2, {}, {}};
        const size_t clumps = 8, each = small_tests() ? 60 : 500;
        const std::vector<float> centers = normal_floats(random, clumps * dims, spread);
        const std::vector<float> noise = normal_floats(random, clumps * (each + 5) * dims, 0.05f);
        for (size_t i = 0; i < clumps * (each + 5); ++i)
            for (uint32_t d = 0; d < dims; ++d)
                (i % (each + 5) < 5 ? c.queries : c.rows)
                    .push_back(centers[i / (each + 5) * dims + d] + noise[i * dims + d]);
        return c;
    }
};

TEST_F(CudaHardExact, Outliers) {
    std::mt19937 random(test_seed());
    for (Metric metric : {Metric::l2, Metric::inner_product})
        for (float far : {1e3f, 1e6f, 1e9f, 1e12f}) {
            check_case(with_outlier(random, metric, far, 0));
            check_case(with_outlier(random, metric, 0, far));
            check_case(with_outlier(random, metric, 0, -far));
        }
}

TEST_F(CudaHardExact, Clumps) {
    std::mt19937 random(test_seed());
    for (uint32_t dims : {1u, 2u, 16u, 70u})
        for (float spread : {10.0f, 1000.0f}) {
            HardCase c = clumps(random, dims, spread);
            check_case(c);
            c.pieces = 3;
            check_case(c);
        }
}

TEST_F(CudaHardExact, ManyTimesTheSame) {
    std::mt19937 random(test_seed());
    for (Metric metric : {Metric::l2, Metric::inner_product}) {
        HardCase c{"the same again", 33, metric, {}, {}};
        const std::vector<float> few = normal_floats(random, 30u * c.dims, 1);
        c.queries = normal_floats(random, 20u * c.dims, 1);
        c.queries.insert(c.queries.end(), few.begin(), few.begin() + 5 * c.dims);
        for (int i = 0; i < 60; ++i) c.rows.insert(c.rows.end(), few.begin(), few.end());
        check_case(c);
    }
}

TEST_F(CudaHardExact, EveryKernelOnce) {
    std::mt19937 random(test_seed());
    HardCase c = clumps(random, 9, 1000);
    c.pieces = 2;
    check_case(c);
}

TEST_F(CudaExact, RefusesTooManyNeighbors) {
    const Context context(options());
    const auto executor = make_executor(context);
    std::vector<float> row(4);
    const uint64_t id = 0;
    std::vector<Neighbor> nearest(3000);
    EXPECT_THROW(executor->exact_search(
                     {row.data(), 1, row.data(), 1, &id, 4, Metric::l2, 3000, nearest.data()}),
                 std::runtime_error);
}

// Little data, for tools that check every access.
TEST_F(CudaExact, EveryKernelOnce) {
    std::mt19937 random(test_seed());
    for (uint32_t k : {5u, 150u, 1500u})
        for (Metric metric : {Metric::l2, Metric::inner_product}) {
            ExactCase c;
            c.dims = 9;
            c.queries = 2;
            c.rows = 2300;
            c.k = k;
            c.metric = metric;
            c.pieces = 2;
            check_case(c, random);
        }
}

}  // namespace
}  // namespace pgwarp::gpu
