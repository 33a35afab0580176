// An index on the device, on real descriptors: the floor below which recall must not fall, and the
// CPU's recall with the same rows.
//
// PGWARP_TEST_DATA names a folder with NAME_base.bvecs and NAME_query.bvecs, of 128 dimensions.

#include "kernels/device.h"
#include "kernels/stand_in_device.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <numeric>

#include "test/kernels/cuda_fixture.h"

namespace pgwarp {

extern "C" OpenDevice pgwarp_open_device;

namespace gpu {
namespace {

constexpr uint32_t dims = 128, m = 32, lists = 500, k = 10, probes = 32;

std::vector<float> read_bvecs(const char* end, size_t most) {
    const char* folder = std::getenv("PGWARP_TEST_DATA");
    if (!folder) return {};
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (!entry.path().string().ends_with(end)) continue;
        FILE* file = std::fopen(entry.path().c_str(), "rb");
        std::vector<float> rows;
        std::vector<uint8_t> row(4 + dims);
        while (file && rows.size() < most * dims &&
               std::fread(row.data(), 1, row.size(), file) == row.size()) {
            if (row[0] != dims) break;
            rows.insert(rows.end(), row.begin() + 4, row.end());
        }
        if (file) std::fclose(file);
        return rows;
    }
    return {};
}

class CudaRecallTest : public CudaTest {
  protected:
    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        rows = read_bvecs("base.bvecs", small_tests() ? 20000 : 1000000);
        queries = read_bvecs("query.bvecs", 500);
        if (rows.empty() || queries.empty()) GTEST_SKIP() << "no data";
    }

    size_t count() const { return rows.size() / dims; }
    size_t query_count() const { return queries.size() / dims; }

    // Of the true ten nearest, how many are among the ten best by their codes.
    double recall_on(Device& device, const std::vector<Neighbor>& truth) {
        const auto executor = device.make_executor();
        const QuantizerShape shape{dims, lists, m, Metric::l2};
        std::vector<float> centroids(lists * dims), codebook(dims * codewords);
        std::vector<float> sample(
            rows.begin(), rows.begin() + std::min<ptrdiff_t>(static_cast<ptrdiff_t>(rows.size()),
                                                             64 * lists * dims));
        {
            const size_t sample_count = sample.size() / dims;
            const auto data = executor->take(sample.data(), sample_count, dims);
            executor->kmeans_start(*data, lists, 1, centroids.data());
            for (int i = 0; i < 8; ++i) executor->kmeans_step(*data, lists, centroids.data());
            executor->make_residuals(*data, lists, centroids.data());
            executor->codebook_start(*data, shape, 1, codebook.data());
            for (int i = 0; i < 8; ++i) executor->codebook_step(*data, shape, codebook.data());
        }
        const Quantizer quantizer{shape, centroids.data(), codebook.data()};
        std::vector<uint32_t> list_of(count());
        std::vector<uint8_t> codes(count() * m);
        std::vector<float> offsets(count());
        executor->encode(quantizer,
                         {rows.data(), count(), list_of.data(), codes.data(), offsets.data()});

        const auto store = device.make_list_store(quantizer, {});
        std::vector<std::vector<size_t>> members(lists);
        for (size_t i = 0; i < count(); ++i) members[list_of[i]].push_back(i);
        for (uint32_t list = 0; list < lists; ++list) {
            const auto size = static_cast<uint32_t>(members[list].size());
            std::vector<uint8_t> columns(size_t{m} * size + 8), tids;
            std::vector<float> list_offsets;
            for (uint32_t l = 0; l < size; ++l) {
                const size_t id = members[list][l];
                for (uint32_t j = 0; j < m; ++j) columns[size_t{j} * size + l] = codes[id * m + j];
                list_offsets.push_back(offsets[id]);
                const uint16_t words[3] = {0, static_cast<uint16_t>(id >> 16),
                                           static_cast<uint16_t>(id)};
                const auto* bytes = reinterpret_cast<const uint8_t*>(words);
                tids.insert(tids.end(), bytes, bytes + 6);
            }
            const ListPage page{columns.data(), size, size, list_offsets.data(), tids.data()};
            store->put(list, {&page, 1});
        }
        const auto batch = store->make_batch({query_count(), k, probes});
        std::copy(queries.begin(), queries.end(), batch->queries);
        std::fill_n(batch->wanted, query_count(), ListQuery{k, probes});
        store->search(*batch, query_count());
        size_t hits = 0;
        for (size_t q = 0; q < query_count(); ++q)
            for (uint32_t i = 0; i < k; ++i)
                hits += std::any_of(batch->found + q * batch->found_stride,
                                    batch->found + q * batch->found_stride + batch->found_counts[q],
                                    [&](const Neighbor& n) { return n.id == truth[q * k + i].id; });
        return static_cast<double>(hits) / static_cast<double>(query_count() * k);
    }

    std::vector<float> rows, queries;
};

TEST_F(CudaRecallTest, HoldsItsFloor) {
    OpenError error;
    DeviceOptions options;
    options.memory_budget = size_t{4} << 30;
    const std::unique_ptr<Device> device(pgwarp_open_device(&options, &error));
    ASSERT_TRUE(device) << error.message;
    const auto host = make_stand_in_device(8, size_t{4} << 30);

    std::vector<uint64_t> ids(count());
    std::iota(ids.begin(), ids.end(), uint64_t{0});
    const auto truth_by = [&](Device& by) {
        std::vector<Neighbor> truth(query_count() * k, {std::numeric_limits<float>::infinity(), 0});
        by.make_executor()->exact_search({queries.data(), query_count(), rows.data(), count(),
                                          ids.data(), dims, Metric::l2, k, truth.data()});
        return truth;
    };
    const std::vector<Neighbor> truth = truth_by(*host), found = truth_by(*device);
    for (size_t i = 0; i < truth.size(); ++i) {
        // Descriptors are whole numbers: distances are exact in float32, and ties may go either
        // way.
        ASSERT_EQ(found[i].distance, truth[i].distance) << i;
    }
    const double cpu = recall_on(*host, truth), cuda = recall_on(*device, truth);
    std::cout << "recall@10 before ranking: " << cuda << ", on the CPU " << cpu << std::endl;
    EXPECT_GE(cuda, cpu - 0.01);
    if (!small_tests()) {
        EXPECT_GE(cuda, 0.73);
    }
}

}  // namespace
}  // namespace gpu
}  // namespace pgwarp
