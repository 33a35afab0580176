// Training and encoding on the device against the CPU.

#include "kernels/cuda/executor.h"
#include "kernels/executor.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <numeric>
#include <string>

#include "test/kernels/cuda_fixture.h"

namespace pgwarp::gpu {
namespace {

double mean_off(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        sum += std::fabs(double{a[i]} - b[i]);
        size += std::fabs(a[i]);
    }
    return sum / std::max(size, 1e-30);
}

double squared_distance(const float* a, const float* b, uint32_t dims) {
    double sum = 0;
    for (uint32_t d = 0; d < dims; ++d) sum += (double{a[d]} - b[d]) * (double{a[d]} - b[d]);
    return sum;
}

uint32_t nearest_of(const float* row, const std::vector<float>& centroids, uint32_t dims) {
    uint32_t nearest = 0;
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t c = 0; c < centroids.size() / dims; ++c) {
        const double here = squared_distance(row, centroids.data() + size_t{c} * dims, dims);
        if (here < least) least = here, nearest = c;
    }
    return nearest;
}

// One iteration in float64. Clusters without members stay where they are.
struct ReferenceStep {
    std::vector<float> centroids;
    double error = 0;

    ReferenceStep(const std::vector<float>& rows, uint32_t dims, const std::vector<float>& before)
        : centroids(before) {
        std::vector<double> sums(before.size());
        std::vector<size_t> counts(before.size() / dims);
        const size_t count = rows.size() / dims;
        for (size_t r = 0; r < count; ++r) {
            const float* row = rows.data() + r * dims;
            const uint32_t c = nearest_of(row, before, dims);
            error += squared_distance(row, before.data() + size_t{c} * dims, dims);
            ++counts[c];
            for (uint32_t d = 0; d < dims; ++d) sums[size_t{c} * dims + d] += row[d];
        }
        error /= static_cast<double>(count);
        for (size_t i = 0; i < sums.size(); ++i)
            if (counts[i / dims])
                centroids[i] = static_cast<float>(sums[i] / static_cast<double>(counts[i / dims]));
    }
};

class CudaTrain : public CudaTest {
  protected:
    // The nearest centroid, up to what float32 cannot tell apart.
    static void check_lists(const std::vector<float>& rows, uint32_t dims,
                            const std::vector<float>& centroids, const std::vector<uint32_t>& lists,
                            const char* who) {
        size_t wrong = 0;
        for (size_t r = 0; r < lists.size(); ++r) {
            const float* row = rows.data() + r * dims;
            ASSERT_LT(lists[r], centroids.size() / dims) << who;
            const float* nearest = centroids.data() + nearest_of(row, centroids, dims) * dims;
            const double least = squared_distance(row, nearest, dims);
            const double found =
                squared_distance(row, centroids.data() + size_t{lists[r]} * dims, dims);
            double size = 0;
            for (uint32_t d = 0; d < dims; ++d) size += double{row[d]} * row[d];
            wrong += found > least + 1e-5 * (size + least + 1e-3);
        }
        EXPECT_EQ(wrong, 0u) << who << ", " << dims << " dims, " << centroids.size() / dims
                             << " lists, of " << lists.size();
    }

    // Rows around some centres, so that clusters are real.
    static std::vector<float> clustered(std::mt19937& random, size_t rows, uint32_t dims) {
        const std::vector<float> centres = normal_floats(random, size_t{20} * dims, 3);
        std::vector<float> values = normal_floats(random, rows * dims);
        for (size_t r = 0; r < rows; ++r)
            for (uint32_t d = 0; d < dims; ++d) values[r * dims + d] += centres[r % 20 * dims + d];
        return values;
    }
};

TEST_F(CudaTrain, StartsAsTheCpuDoes) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context), cpu = make_cpu_executor(2, nullptr);
    for (size_t rows : {10u, 1000u}) {
        std::vector<float> data = clustered(random, rows, 7), same = data;
        const auto on_device = cuda->take(data.data(), rows, 7);
        const auto on_host = cpu->take(same.data(), rows, 7);
        std::vector<float> a(30 * 7), b(30 * 7);
        cuda->kmeans_start(*on_device, 30, 42, a.data());
        cpu->kmeans_start(*on_host, 30, 42, b.data());
        EXPECT_EQ(a, b);
        std::vector<float> c(7 * codewords), d(7 * codewords);
        cuda->codebook_start(*on_device, {7, 30, 3, Metric::l2}, 43, c.data());
        cpu->codebook_start(*on_host, {7, 30, 3, Metric::l2}, 43, d.data());
        EXPECT_EQ(c, d);
    }
}

TEST_F(CudaTrain, MovesCentroidsToTheMeans) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context), cpu = make_cpu_executor(2, nullptr);
    for (uint32_t dims : {1u, 3u, 17u, 128u})
        for (uint32_t clusters : {1u, 7u, 33u, 64u}) {
            const size_t rows = small_tests() ? 2000 : 10000;
            std::vector<float> data = clustered(random, rows, dims), same = data;
            const auto on_device = cuda->take(data.data(), rows, dims);
            const auto on_host = cpu->take(same.data(), rows, dims);
            std::vector<float> a(size_t{clusters} * dims), b(a.size());
            cuda->kmeans_start(*on_device, clusters, 1, a.data());
            for (int i = 0; i < 3; ++i) {
                std::copy(a.begin(), a.end(), b.begin());
                const ReferenceStep reference(data, dims, a);
                const double cuda_error = cuda->kmeans_step(*on_device, clusters, a.data());
                const double cpu_error = cpu->kmeans_step(*on_host, clusters, b.data());
                const std::string what =
                    std::to_string(dims) + " dims, " + std::to_string(clusters) + " clusters";
                EXPECT_NEAR(cuda_error, reference.error, 1e-4 * reference.error) << what;
                EXPECT_NEAR(cpu_error, reference.error, 1e-4 * reference.error) << what;
                // A row between two centroids may go either way.
                EXPECT_LT(mean_off(reference.centroids, a), 3e-4) << what;
                EXPECT_LT(mean_off(reference.centroids, b), 3e-4) << what << ", on the CPU";
            }
        }
}

// Fewer different rows than clusters: some stay empty, and are split off the largest.
TEST_F(CudaTrain, SplitsLargeClusters) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context);
    const uint32_t dims = 8, clusters = 16;
    std::vector<float> data = clustered(random, 4000, dims);
    const auto rows = cuda->take(data.data(), 4000, dims);
    std::vector<float> centroids(clusters * dims);
    for (uint32_t c = 0; c < clusters; ++c)
        std::copy_n(data.begin(), dims, centroids.begin() + c * dims);
    double first = 0, last = 0;
    for (int i = 0; i < 25; ++i) {
        last = cuda->kmeans_step(*rows, clusters, centroids.data());
        if (i == 0) first = last;
    }
    EXPECT_LT(last, 0.5 * first);
    for (float x : centroids) EXPECT_TRUE(std::isfinite(x));
}

TEST_F(CudaTrain, RepeatsExactly) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context);
    const uint32_t dims = 32, clusters = 50;
    const size_t count = small_tests() ? 3000 : 100000;
    std::vector<float> data = clustered(random, count, dims);
    const QuantizerShape shape{dims, clusters, 8, Metric::l2};
    std::vector<float> results[2];
    double errors[2];
    for (int run = 0; run < 2; ++run) {
        std::vector<float> centroids(size_t{clusters} * dims), codebook(size_t{dims} * codewords);
        const auto rows = cuda->take(data.data(), count, dims);
        cuda->kmeans_start(*rows, clusters, 9, centroids.data());
        for (int i = 0; i < 4; ++i)
            errors[run] = cuda->kmeans_step(*rows, clusters, centroids.data());
        cuda->make_residuals(*rows, clusters, centroids.data());
        cuda->codebook_start(*rows, shape, 9, codebook.data());
        for (int i = 0; i < 4; ++i)
            errors[run] += cuda->codebook_step(*rows, shape, codebook.data());
        results[run] = centroids;
        results[run].insert(results[run].end(), codebook.begin(), codebook.end());
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(errors[0], errors[1]);
}

// Rows that do not fit the budget come from the host, chunk by chunk, with the same result.
TEST_F(CudaTrain, StreamsWhatDoesNotFit) {
    std::mt19937 random(test_seed());
    const uint32_t dims = 64, clusters = 20;
    const size_t count = small_tests() ? 40000 : 200000;
    std::vector<float> data = clustered(random, count, dims);
    const QuantizerShape shape{dims, clusters, 16, Metric::l2};
    std::vector<float> results[2];
    double errors[2];
    const size_t bytes = count * dims * sizeof(float);
    for (int run = 0; run < 2; ++run) {
        const Context context(options(run == 0 ? size_t{4} << 30 : bytes, size_t{2} << 20));
        const auto cuda = make_executor(context);
        std::vector<float> centroids(size_t{clusters} * dims), codebook(size_t{dims} * codewords);
        const auto rows = cuda->take(data.data(), count, dims);
        EXPECT_EQ(context.memory.use().used >= bytes, run == 0);
        cuda->kmeans_start(*rows, clusters, 9, centroids.data());
        for (int i = 0; i < 2; ++i)
            errors[run] = cuda->kmeans_step(*rows, clusters, centroids.data());
        cuda->make_residuals(*rows, clusters, centroids.data());
        cuda->codebook_start(*rows, shape, 9, codebook.data());
        for (int i = 0; i < 2; ++i)
            errors[run] += cuda->codebook_step(*rows, shape, codebook.data());
        results[run] = centroids;
        results[run].insert(results[run].end(), codebook.begin(), codebook.end());
    }
    EXPECT_LT(mean_off(results[0], results[1]), 1e-5);
    EXPECT_NEAR(errors[0], errors[1], 1e-6 * errors[0]);
}

struct EncodeCase {
    uint32_t dims, m, lists;
    Metric metric = Metric::l2;
};

TEST_F(CudaTrain, EncodesAsTheCpuDoes) {
    std::mt19937 random(test_seed());
    const Context context(options(size_t{4} << 30, size_t{64} << 20));
    const auto cuda = make_executor(context), cpu = make_cpu_executor(4, nullptr);
    for (const EncodeCase& c :
         {EncodeCase{128, 32, 100}, EncodeCase{100, 33, 7}, EncodeCase{7, 7, 1},
          EncodeCase{5, 1, 3}, EncodeCase{65, 64, 30}, EncodeCase{784, 49, 20},
          EncodeCase{784, 8, 20}, EncodeCase{130, 13, 20, Metric::inner_product},
          EncodeCase{40, 2, 20, Metric::inner_product}}) {
        const size_t rows = small_tests() ? 500 : 20001;
        const std::vector<float> data = clustered(random, rows, c.dims);
        const std::vector<float> centroids = clustered(random, c.lists, c.dims);
        const std::vector<float> codebook = normal_floats(random, size_t{c.dims} * codewords);
        const Quantizer quantizer{
            {c.dims, c.lists, c.m, c.metric}, centroids.data(), codebook.data()};
        std::vector<uint32_t> lists[2];
        std::vector<uint8_t> codes[2];
        std::vector<float> offsets[2];
        for (int run = 0; run < 2; ++run) {
            lists[run].assign(rows, 0xeeeeeeee);
            codes[run].assign(rows * c.m, 0xee);
            offsets[run].assign(rows, -1);
            (run == 0 ? cuda : cpu)
                ->encode(quantizer, {data.data(), rows, lists[run].data(), codes[run].data(),
                                     offsets[run].data()});
        }
        for (int run = 0; run < 2; ++run)
            check_lists(data, c.dims, centroids, lists[run], run == 0 ? "cuda" : "cpu");
        // Near ties may fall either way; anything more is a mistake.
        size_t compared = 0, other_codes = 0;
        for (size_t r = 0; r < rows; ++r) {
            if (lists[0][r] != lists[1][r]) continue;
            bool same = true;
            for (uint32_t j = 0; j < c.m; ++j)
                if (codes[0][r * c.m + j] != codes[1][r * c.m + j]) ++other_codes, same = false;
            compared += c.m;
            if (same) {
                ASSERT_NEAR(offsets[0][r], offsets[1][r], 1e-5 * (1 + std::fabs(offsets[1][r])))
                    << c.dims << " dims, m " << c.m << ", row " << r;
            }
        }
        EXPECT_LE(other_codes, compared / 1000 + 2) << c.dims << " dims, m " << c.m;
    }
}

TEST_F(CudaTrain, MakesTheResidualsOfTheCpu) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context), cpu = make_cpu_executor(2, nullptr);
    const uint32_t dims = 20, clusters = 12;
    const size_t count = 5000;
    std::vector<float> data = clustered(random, count, dims), same = data;
    const std::vector<float> centroids = clustered(random, clusters, dims);
    const auto on_device = cuda->take(data.data(), count, dims);
    const auto on_host = cpu->take(same.data(), count, dims);
    cuda->make_residuals(*on_device, clusters, centroids.data());
    cpu->make_residuals(*on_host, clusters, centroids.data());
    const QuantizerShape shape{dims, clusters, 5, Metric::l2};
    std::vector<float> a(size_t{dims} * codewords), b(a.size());
    cuda->codebook_start(*on_device, shape, 5, a.data());
    cpu->codebook_start(*on_host, shape, 5, b.data());
    EXPECT_EQ(a, b);
    for (int i = 0; i < 3; ++i) {
        std::copy(a.begin(), a.end(), b.begin());
        const double cuda_error = cuda->codebook_step(*on_device, shape, a.data());
        const double cpu_error = cpu->codebook_step(*on_host, shape, b.data());
        EXPECT_NEAR(cuda_error, cpu_error, 1e-4 * cpu_error);
        EXPECT_LT(mean_off(b, a), 1e-3);
    }
}

TEST_F(CudaTrain, StopsWhenInterrupted) {
    std::mt19937 random(test_seed());
    volatile std::sig_atomic_t interrupt = 0;
    DeviceOptions wanted = options();
    wanted.interrupt = &interrupt;
    const Context context(wanted);
    const auto cuda = make_executor(context);
    std::vector<float> data = clustered(random, 1000, 4);
    const auto rows = cuda->take(data.data(), 1000, 4);
    std::vector<float> centroids(5 * 4);
    cuda->kmeans_start(*rows, 5, 1, centroids.data());
    const std::vector<float> before = centroids;
    interrupt = 1;
    EXPECT_THROW(cuda->kmeans_step(*rows, 5, centroids.data()), Interrupted);
    EXPECT_EQ(centroids, before);
    interrupt = 0;
    EXPECT_GT(cuda->kmeans_step(*rows, 5, centroids.data()), 0);
}

}  // namespace
}  // namespace pgwarp::gpu
