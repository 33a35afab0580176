// The order in which a query takes its lists: by term, then by number, however the terms lie.

#include "kernels/list_store.h"
#include "kernels/random.h"
#include "test/kernels/seed.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

namespace pgwarp {
namespace {

// Lists without entries whose centroids are these numbers.
void expect_order(Metric metric, const std::vector<float>& centroids, uint32_t probes) {
    const auto lists = static_cast<uint32_t>(centroids.size());
    const std::vector<float> codebook(256);
    const auto store =
        make_cpu_list_store({{1, lists, 1, metric}, centroids.data(), codebook.data()}, {}, 1, {});
    const auto batch = store->make_batch({1, 1, probes});
    const float query = 2;
    batch->queries[0] = query;
    batch->wanted[0] = {1, probes};
    store->search(*batch, 1);
    const auto term_of = [&](uint32_t list) {
        const float term = metric == Metric::inner_product
                               ? -query * centroids[list]
                               : (query - centroids[list]) * (query - centroids[list]);
        return std::isnan(term) ? std::numeric_limits<float>::infinity() : term;
    };
    std::vector<uint32_t> expected(lists);
    for (uint32_t i = 0; i < lists; ++i) expected[i] = i;
    std::sort(expected.begin(), expected.end(), [&](uint32_t a, uint32_t b) {
        return term_of(a) < term_of(b) || (term_of(a) == term_of(b) && a < b);
    });
    for (uint32_t i = 0; i < std::min(probes, lists); ++i)
        ASSERT_EQ(batch->probed[i], expected[i]) << i << " of " << lists;
}

TEST(ListOrder, IsByTermThenByNumber) {
    Random random(test_seed());
    for (const uint32_t lists : {1, 2, 3, 17, 100, 1000})
        for (const Metric metric : {Metric::l2, Metric::inner_product})
            for (const uint32_t probes : {1u, lists / 20 + 1, lists}) {
                std::vector<float> centroids(lists);
                for (float& value : centroids)
                    value = static_cast<float>(random.uniform() * 20 - 10);
                expect_order(metric, centroids, probes);
                // One far from all others, and one that is infinitely far.
                centroids[lists / 2] = 1e15f;
                expect_order(metric, centroids, probes);
                centroids[lists / 2] = 3e38f;
                expect_order(metric, centroids, probes);
                // Few different ones, zero of either sign, and all the same.
                for (float& value : centroids) value = static_cast<float>(random.below(3)) * 2 - 2;
                expect_order(metric, centroids, probes);
                for (float& value : centroids) value = random.below(2) == 0 ? 0.0f : -0.0f;
                expect_order(metric, centroids, probes);
            }
}

}  // namespace
}  // namespace pgwarp
