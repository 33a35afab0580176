// What quantizers are worth on real pictures: floors, and their order.

#include "kernels/compare_codes.h"

#include "kernels/executor.h"

#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/pictures.h"

namespace pgwarp {
namespace {

constexpr uint32_t side = 28, half = side / 2, dims = half * half;

// Four pixels made one: 196 dimensions, of which a rotation is trained in no time.
std::vector<float> small_pictures(const std::string& name, size_t count) {
    const std::vector<float> whole = pictures(name, count);
    if (whole.empty()) return {};
    std::vector<float> small(count * dims);
    for (size_t i = 0; i < count; ++i)
        for (uint32_t y = 0; y < half; ++y)
            for (uint32_t x = 0; x < half; ++x) {
                const float* at = whole.data() + i * picture_dims + 2 * y * side + 2 * x;
                small[i * dims + y * half + x] = (at[0] + at[1] + at[side] + at[side + 1]) / 4;
            }
    return small;
}

TEST(CompareCodes, OfPictures) {
    constexpr size_t count = 3000, query_count = 300;
    const std::vector<float> rows = small_pictures("train", count);
    const std::vector<float> queries = small_pictures("t10k", query_count);
    if (rows.empty() || queries.empty()) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
    const auto executor = make_cpu_executor(2, {});
    std::vector<uint64_t> ids(count);
    std::iota(ids.begin(), ids.end(), uint64_t{0});
    std::vector<Neighbor> truth(query_count, {std::numeric_limits<float>::infinity(), 0});
    executor->exact_search({queries.data(), query_count, rows.data(), count, ids.data(), dims,
                            Metric::l2, 1, truth.data()});
    std::vector<uint32_t> nearest;
    for (const Neighbor& neighbor : truth) nearest.push_back(static_cast<uint32_t>(neighbor.id));
    const CodeSample sample{dims,  Metric::l2,     rows.data(), count,         rows.data(),
                            count, queries.data(), query_count, nearest.data()};
    Workers workers(2);
    struct Floor {
        const char* name;
        CodeTrial trial;
        double recall[3];
    };
    // Four bytes a row: training sums of words takes the cube of their number.
    const Floor floors[] = {
        {"pq", {CodeKind::pq, 8, 4}, {0.30, 0.88, 0.99}},
        {"pq4", {CodeKind::pq, 4, 4}, {0.07, 0.58, 0.97}},
        {"opq", {CodeKind::opq, 8, 4}, {0.36, 0.88, 0.99}},
        {"opq4", {CodeKind::opq, 4, 4}, {0.22, 0.79, 0.99}},
        {"lsq", {CodeKind::lsq, 8, 4}, {0.44, 0.95, 0.99}},
        {"lsq with norm", {CodeKind::lsq_with_norm, 8, 4}, {0.36, 0.90, 0.99}},
    };
    std::map<std::string, CodeQuality> found;
    for (const Floor& floor : floors) {
        const CodeQuality q = measure_codes(workers, *executor, floor.trial, sample, 1);
        std::cout << floor.name << ": error " << q.error << ", recall " << q.recall[0] << " "
                  << q.recall[1] << " " << q.recall[2] << std::endl;
        for (int i = 0; i < 3; ++i) EXPECT_GE(q.recall[i], floor.recall[i]) << floor.name;
        EXPECT_GT(q.rows_per_second, 0);
        found[floor.name] = q;
    }
    EXPECT_LT(found["opq"].error, found["pq"].error);
    EXPECT_GT(found["opq"].recall[0], found["pq"].recall[0]);
    EXPECT_LT(found["opq4"].error, found["pq4"].error);
    EXPECT_LT(found["pq"].error, found["pq4"].error);
    EXPECT_LT(found["lsq"].error, found["lsq with norm"].error);
    EXPECT_LT(found["lsq with norm"].error, found["opq"].error);
}

}  // namespace
}  // namespace pgwarp
