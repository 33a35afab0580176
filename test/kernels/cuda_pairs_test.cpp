// Pairs of rows within a bound on the device, against those of the CPU.

#include "kernels/similar_pairs.h"

#include <map>

#include "test/kernels/cuda_graph_check.h"

namespace pgwarp::gpu {
namespace {

using Found = std::map<std::pair<uint32_t, uint32_t>, float>;

class CudaPairs : public CudaGraph {
  protected:
    // All pairs, cutting rectangles where the finder wants it.
    static void find(PairFinder& finder, const PairRectangle& rectangle, size_t most,
                     Found* found) {
        if (rectangle.a.size() == 0 || rectangle.b.size() == 0) return;
        std::vector<RowPair> pairs;
        if (finder.find(rectangle, most, &pairs)) {
            for (const RowPair& pair : pairs) {
                ASSERT_LT(pair.first, pair.second);
                ASSERT_TRUE(
                    found->emplace(std::pair(pair.first, pair.second), pair.distance).second);
            }
            return;
        }
        const auto &a = rectangle.a, &b = rectangle.b;
        ASSERT_GT(a.size() * b.size(), 1u);
        const size_t a_middle = (a.begin + a.end) / 2, b_middle = (b.begin + b.end) / 2;
        if (rectangle.is_square()) {
            find(finder, {{a.begin, a_middle}, {a.begin, a_middle}}, most, found);
            find(finder, {{a.begin, a_middle}, {a_middle, a.end}}, most, found);
            find(finder, {{a_middle, a.end}, {a_middle, a.end}}, most, found);
        } else if (a.size() > b.size()) {
            find(finder, {{a.begin, a_middle}, b}, most, found);
            find(finder, {{a_middle, a.end}, b}, most, found);
        } else {
            find(finder, {a, {b.begin, b_middle}}, most, found);
            find(finder, {a, {b_middle, b.end}}, most, found);
        }
    }
    static void expect_same(GraphBuilder& device, const Made& made, float bound, size_t most) {
        const RowSpan all{0, made.rows.count};
        const auto cpu = make_cpu_graph_builder(2, {});
        Found found, truth;
        find(*device.find_pairs(made.rows, bound), {all, all}, most, &found);
        find(*cpu->find_pairs(made.rows, bound), {all, all}, most, &truth);
        EXPECT_GT(truth.size(), 0u);
        const auto near = [&](const Found::value_type& pair) {
            return std::fabs(made.distance(pair.first.first, pair.first.second) - bound) <=
                   4 * made.rounding(pair.first.first, pair.first.second);
        };
        for (const auto& pair : truth) {
            const auto at = found.find(pair.first);
            if (at == found.end()) {
                ASSERT_TRUE(near(pair)) << pair.first.first << " and " << pair.first.second;
            } else {
                ASSERT_NEAR(at->second, pair.second,
                            2 * made.rounding(pair.first.first, pair.first.second));
            }
        }
        for (const auto& pair : found)
            if (truth.count(pair.first) == 0) {
                ASSERT_TRUE(near(pair)) << pair.first.first << " and " << pair.first.second;
            }
    }
    static float bound_of(const Made& made, double share) {
        std::vector<float> distances;
        for (size_t a = 0; a < made.rows.count; a += 5)
            for (size_t b = a + 1; b < made.rows.count; b += 3)
                distances.push_back(static_cast<float>(made.distance(a, b)));
        const auto at = distances.begin() +
                        static_cast<std::ptrdiff_t>(share * static_cast<double>(distances.size()));
        std::nth_element(distances.begin(), at, distances.end());
        return *at;
    }
};

TEST_F(CudaPairs, AreThoseOfTheCpu) {
    OnDevice device(options());
    for (const size_t count : {2, 30, 1000, 3001})
        for (const Metric metric : all_metrics) {
            const auto dims = static_cast<uint32_t>(between(random, 1, 140));
            const Made made(pgwarp::normal_floats(random, count * dims), dims, metric);
            SCOPED_TRACE(testing::Message() << count << " x " << dims << ", " << sql_name(metric));
            expect_same(*device.builder, made, count < 50 ? 1e9f : bound_of(made, 0.01),
                        size_t{1} << 22);
        }
}

// Far from the origin, in tight clusters, many of them equal, with room for few pairs at a time.
TEST_F(CudaPairs, HoldForRowsThatAreNear) {
    OnDevice device(options());
    for (const Metric metric : {Metric::l2, Metric::cosine}) {
        auto values = clustered_rows(random, 2000, 24, 20);
        for (float& value : values) value += 100;
        std::copy_n(values.begin(), 300 * 24, values.begin() + 1000 * 24);
        const Made made(std::move(values), 24, metric);
        expect_same(*device.builder, made, bound_of(made, 0.02), 5000);
    }
}

// Two groups far from each other: whichever is near the origin, halves do not tell rows of the
// other apart, and there are enough of these that the finder takes both halves of numbers instead.
TEST_F(CudaPairs, HoldWhereHalvesAreTooCoarse) {
    OnDevice device(options());
    for (const Metric metric : {Metric::l2, Metric::inner_product}) {
        auto values = pgwarp::normal_floats(random, 3000 * 24);
        for (size_t i = 0; i < values.size(); ++i)
            values[i] = (i / 24 % 2 == 0 ? 1000.0f : -1000.0f) + values[i] / 8;
        const Made made(std::move(values), 24, metric);
        expect_same(*device.builder, made, bound_of(made, 0.005), size_t{1} << 22);
    }
}

TEST_F(CudaPairs, EveryKernelOnce) {
    OnDevice device(options());
    for (const Metric metric : {Metric::l2, Metric::inner_product, Metric::l1}) {
        const Made made(pgwarp::normal_floats(random, 200 * 10), 10, metric);
        expect_same(*device.builder, made, bound_of(made, 0.05), 100000);
    }
}

}  // namespace
}  // namespace pgwarp::gpu
