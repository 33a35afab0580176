// An index in memory, on real pictures: the floor below which recall must not fall.

#include "kernels/candidates.h"
#include "kernels/distance.h"
#include "kernels/executor.h"
#include "kernels/list_scan.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/pictures.h"

namespace pgwarp {
namespace {

constexpr uint32_t dims = picture_dims;

struct Index {
    QuantizerShape shape;
    std::vector<float> centroids;
    std::vector<float> codebook;
    struct List {
        std::vector<uint64_t> ids;
        std::vector<uint8_t> codes;  // (m)(ids), and 7 bytes behind
        std::vector<float> offsets;
    };
    std::vector<List> lists;

    Index(Executor& executor, const QuantizerShape& of, const std::vector<float>& rows)
        : shape(of),
          centroids(size_t{of.lists} * dims),
          codebook(size_t{dims} * codewords),
          lists(of.lists) {
        std::vector<float> sample = rows;
        const size_t count = rows.size() / dims;
        const auto data = executor.take(sample.data(), count, dims);
        executor.kmeans_start(*data, shape.lists, 1, centroids.data());
        for (int i = 0; i < 10; ++i) executor.kmeans_step(*data, shape.lists, centroids.data());
        executor.make_residuals(*data, shape.lists, centroids.data());
        executor.codebook_start(*data, shape, 1, codebook.data());
        for (int i = 0; i < 5; ++i) executor.codebook_step(*data, shape, codebook.data());

        std::vector<uint32_t> list_of(count);
        std::vector<uint8_t> codes(count * shape.m);
        std::vector<float> offsets(count);
        executor.encode(quantizer(),
                        {rows.data(), count, list_of.data(), codes.data(), offsets.data()});
        for (size_t i = 0; i < count; ++i) {
            lists[list_of[i]].ids.push_back(i);
            lists[list_of[i]].offsets.push_back(offsets[i]);
        }
        for (List& list : lists) {
            const size_t size = list.ids.size();
            list.codes.resize(shape.m * size + 7);
            for (size_t l = 0; l < size; ++l)
                for (uint32_t j = 0; j < shape.m; ++j)
                    list.codes[j * size + l] = codes[list.ids[l] * shape.m + j];
        }
    }
    Quantizer quantizer() const { return {shape, centroids.data(), codebook.data()}; }

    // The ids of the `wanted` best of the `probes` nearest lists.
    std::vector<uint64_t> candidates(const float* query, uint32_t probes, size_t wanted) const {
        std::vector<float> terms(shape.lists);
        if (shape.metric == Metric::inner_product) {
            dot_products(query, {centroids.data(), dims, shape.lists}, dims, terms.data());
            for (float& term : terms) term = -term;
        } else {
            squared_l2_distances(query, {centroids.data(), dims, shape.lists}, dims, terms.data());
        }
        std::vector<uint32_t> order(shape.lists);
        std::iota(order.begin(), order.end(), 0u);
        std::sort(order.begin(), order.end(),
                  [&](uint32_t a, uint32_t b) { return terms[a] < terms[b]; });
        std::vector<float> table(size_t{shape.m} * codewords);
        build_table(quantizer(), query, table.data());
        std::vector<Candidate> room(CandidateSelection::room_for(wanted));
        CandidateSelection selection(room.data(), wanted, no_floor);
        for (uint32_t probe = 0; probe < probes; ++probe) {
            const List& list = lists[order[probe]];
            const auto size = static_cast<uint32_t>(list.ids.size());
            std::vector<float> distances(size + 8);
            scan_codes(table.data(), shape.m, {list.codes.data(), size, size, list.offsets.data()},
                       terms[order[probe]], distances.data());
            for (uint32_t l = 0; l < size; ++l) selection.offer(distances[l], list.ids[l]);
        }
        std::vector<uint64_t> ids(selection.finish().count);
        for (size_t i = 0; i < ids.size(); ++i) ids[i] = room[i].id;
        return ids;
    }
};

void normalise(std::vector<float>& rows) {
    for (size_t i = 0; i < rows.size(); i += dims) {
        const auto norm = static_cast<float>(std::sqrt(squared_norm(rows.data() + i, dims)));
        for (uint32_t d = 0; d < dims; ++d) rows[i + d] /= norm;
    }
}

struct Case {
    const char* name;
    Metric metric;
    uint32_t m;
    uint32_t probes;
    size_t wanted;
    double floor;  // of the true ten nearest among the candidates
    uint32_t bits = 8;
};

class Recall : public testing::TestWithParam<Case> {};

TEST_P(Recall, HoldsItsFloor) {
    const Case& c = GetParam();
    std::vector<float> rows = pictures("train", 10000), queries = pictures("t10k", 200);
    if (rows.empty() || queries.empty()) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
    if (c.metric == Metric::cosine) {
        normalise(rows);
        normalise(queries);
    }
    const auto executor = make_cpu_executor(2, {});
    const Index index(*executor, {dims, 100, c.m, c.metric, c.bits}, rows);

    constexpr uint32_t k = 10;
    const size_t count = rows.size() / dims, query_count = queries.size() / dims;
    std::vector<uint64_t> ids(count);
    std::iota(ids.begin(), ids.end(), uint64_t{0});
    std::vector<Neighbor> truth(query_count * k,
                                Neighbor{std::numeric_limits<float>::infinity(), 0});
    executor->exact_search({queries.data(), query_count, rows.data(), count, ids.data(), dims,
                            c.metric, k, truth.data()});
    size_t found = 0;
    for (size_t q = 0; q < query_count; ++q) {
        const auto got = index.candidates(queries.data() + q * dims, c.probes, c.wanted);
        const std::set<uint64_t> set(got.begin(), got.end());
        for (uint32_t at = 0; at < k; ++at) found += set.count(truth[q * k + at].id);
    }
    const double recall = static_cast<double>(found) / static_cast<double>(query_count * k);
    RecordProperty("recall", std::to_string(recall));
    std::cout << c.name << ": recall " << recall << std::endl;
    EXPECT_GE(recall, c.floor);
}

INSTANTIATE_TEST_SUITE_P(
    FashionMnist, Recall,
    testing::Values(Case{"L2", Metric::l2, 98, 10, 100, 0.99},
                    Case{"L2WithoutMoreCandidates", Metric::l2, 98, 10, 10, 0.83},
                    Case{"L2ShortCodes", Metric::l2, 28, 10, 100, 0.985},
                    Case{"L2FourBits", Metric::l2, 98, 10, 100, 0.99, 4},
                    Case{"L2FourBitsWithoutMoreCandidates", Metric::l2, 98, 10, 10, 0.75, 4},
                    Case{"InnerProductFourBits", Metric::inner_product, 98, 20, 100, 0.99, 4},
                    Case{"InnerProduct", Metric::inner_product, 98, 20, 100, 0.99},
                    Case{"Cosine", Metric::cosine, 98, 10, 100, 0.99}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace pgwarp
