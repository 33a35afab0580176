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

double squared_norm(const float* a, uint32_t dims) {
    double sum = 0;
    for (uint32_t d = 0; d < dims; ++d) sum += double{a[d]} * a[d];
    return sum;
}

// How much two distances of a row must differ for float32 to tell: the terms they are the sum of
// are as large as the squared norms, measured from amidst the centroids.
class Rounding {
  public:
    Rounding(const std::vector<float>& centroids, uint32_t dims) : origin_(dims), dims_(dims) {
        const size_t clusters = centroids.size() / dims;
        std::vector<double> sums(dims);
        for (size_t i = 0; i < centroids.size(); ++i) sums[i % dims] += centroids[i];
        for (uint32_t d = 0; d < dims; ++d)
            origin_[d] = static_cast<float>(sums[d] / static_cast<double>(clusters));
        for (size_t c = 0; c < clusters; ++c)
            largest_ = std::max(
                largest_, squared_distance(centroids.data() + c * dims, origin_.data(), dims));
    }
    double of(const float* row) const {
        return 2e-6 * (squared_distance(row, origin_.data(), dims_) + largest_) +
               1e-12 * squared_norm(row, dims_);
    }

  private:
    std::vector<float> origin_;
    uint32_t dims_;
    double largest_ = 0;
};

struct NearestTwo {
    uint32_t nearest = 0;
    uint32_t next = 0;
    double least = std::numeric_limits<double>::infinity();
    double next_least = std::numeric_limits<double>::infinity();

    NearestTwo(const float* row, const std::vector<float>& centroids, uint32_t dims) {
        for (uint32_t c = 0; c < centroids.size() / dims; ++c) {
            const double here = squared_distance(row, centroids.data() + size_t{c} * dims, dims);
            if (here < least) {
                next_least = least, next = nearest;
                least = here, nearest = c;
            } else if (here < next_least) {
                next_least = here, next = c;
            }
        }
    }
};

// One iteration in float64, and how far each centroid may be off because rows that lie between two
// of them, as far as float32 can tell, went the other way. Clusters without members stay where
// they are.
struct ReferenceStep {
    std::vector<float> centroids;
    std::vector<size_t> counts;
    std::vector<double> slack;
    double error = 0;

    ReferenceStep(const std::vector<float>& rows, uint32_t dims, const std::vector<float>& before)
        : centroids(before), counts(before.size() / dims), slack(counts.size()) {
        std::vector<double> sums(before.size());
        const Rounding rounding(before, dims);
        const size_t count = rows.size() / dims;
        std::vector<std::pair<uint32_t, const float*>> ties;  // a cluster, and a row of it or not
        for (size_t r = 0; r < count; ++r) {
            const float* row = rows.data() + r * dims;
            const NearestTwo two(row, before, dims);
            error += two.least;
            ++counts[two.nearest];
            for (uint32_t d = 0; d < dims; ++d) sums[size_t{two.nearest} * dims + d] += row[d];
            if (two.next_least - two.least > rounding.of(row)) continue;
            ties.emplace_back(two.nearest, row);
            ties.emplace_back(two.next, row);
        }
        error /= static_cast<double>(count);
        for (size_t i = 0; i < sums.size(); ++i)
            if (counts[i / dims])
                centroids[i] = static_cast<float>(sums[i] / static_cast<double>(counts[i / dims]));
        // A row that comes or goes moves the mean of n rows by about an n-th of its distance to it.
        for (const auto& [c, row] : ties)
            slack[c] += 2 * std::sqrt(squared_distance(row, &centroids[size_t{c} * dims], dims)) /
                        std::max(1.0, static_cast<double>(counts[c]));
    }

    void check(const std::vector<float>& moved, double moved_error, uint32_t dims,
               const std::string& what) const {
        EXPECT_NEAR(moved_error, error, 2e-5 * error) << what;
        for (uint32_t c = 0; c < counts.size(); ++c) {
            if (counts[c] == 0) continue;
            const float* expected = centroids.data() + size_t{c} * dims;
            const double off =
                std::sqrt(squared_distance(expected, moved.data() + size_t{c} * dims, dims));
            EXPECT_LE(off, slack[c] + 1e-6 * std::sqrt(squared_norm(expected, dims)) + 1e-30)
                << what << ", cluster " << c << " of " << counts[c] << " rows";
        }
    }
};

class CudaTrain : public CudaTest {
  protected:
    // The nearest centroid, up to what float32 cannot tell apart.
    static void check_lists(const std::vector<float>& rows, uint32_t dims,
                            const std::vector<float>& centroids, const std::vector<uint32_t>& lists,
                            const char* who) {
        size_t wrong = 0;
        const Rounding rounding(centroids, dims);
        for (size_t r = 0; r < lists.size(); ++r) {
            const float* row = rows.data() + r * dims;
            ASSERT_LT(lists[r], centroids.size() / dims) << who;
            const double found =
                squared_distance(row, centroids.data() + size_t{lists[r]} * dims, dims);
            wrong += found > NearestTwo(row, centroids, dims).least + rounding.of(row);
        }
        EXPECT_EQ(wrong, 0u) << who << ", " << dims << " dims, " << centroids.size() / dims
                             << " lists, of " << lists.size();
    }

    // Two codes of a piece whose distances float32 cannot tell apart.
    static void check_tie(const Quantizer& quantizer, const float* row, const float* centroid,
                          uint32_t piece, uint8_t a, uint8_t b) {
        double to_a = 0, to_b = 0, size = 0;
        const QuantizerShape& shape = quantizer.shape;
        for (uint32_t d = shape.piece_begin(piece); d < shape.piece_begin(piece + 1); ++d) {
            const double r = row[d] - centroid[d];
            const double w_a = quantizer.codebook[size_t{d} * codewords + a];
            const double w_b = quantizer.codebook[size_t{d} * codewords + b];
            to_a += (r - w_a) * (r - w_a);
            to_b += (r - w_b) * (r - w_b);
            size += r * r + w_a * w_a + w_b * w_b;
        }
        EXPECT_NEAR(to_a, to_b, 2e-6 * size) << shape.dims << " dims, m " << shape.m;
    }

    static void train_once(std::mt19937& random, const std::vector<uint32_t>& sub_quantizers) {
        const Context context(options());
        const auto cuda = make_executor(context), cpu = make_cpu_executor(1, {});
        const uint32_t dims = 40, clusters = 6;
        const size_t count = 300;
        std::vector<float> data = clustered(random, count, dims);
        std::vector<float> centroids(clusters * dims, 0.5f), codebook(size_t{dims} * codewords);
        const auto rows = cuda->take(data.data(), count, dims);
        cuda->kmeans_step(*rows, clusters, centroids.data());  // five have no rows
        cuda->kmeans_start(*rows, clusters, 1, centroids.data());
        cuda->kmeans_step(*rows, clusters, centroids.data());
        cuda->make_residuals(*rows, clusters, centroids.data());
        for (uint32_t m : sub_quantizers) {
            const QuantizerShape shape{dims, clusters, m, Metric::l2};
            cuda->codebook_start(*rows, shape, 1, codebook.data());
            for (int i = 0; i < 2; ++i) cuda->codebook_step(*rows, shape, codebook.data());
            const Quantizer quantizer{shape, centroids.data(), codebook.data()};
            std::vector<uint32_t> lists[2];
            std::vector<uint8_t> codes[2];
            std::vector<float> offsets[2];
            for (int run = 0; run < 2; ++run) {
                lists[run].resize(count);
                codes[run].resize(count * m);
                offsets[run].resize(count);
                (run == 0 ? cuda : cpu)
                    ->encode(quantizer, {data.data(), count, lists[run].data(), codes[run].data(),
                                         offsets[run].data()});
            }
            check_lists(data, dims, centroids, lists[0], "cuda");
            for (size_t r = 0; r < count; ++r)
                for (uint32_t j = 0; j < m; ++j)
                    if (lists[0][r] == lists[1][r])
                        check_tie(quantizer, data.data() + r * dims,
                                  centroids.data() + lists[0][r] * dims, j, codes[0][r * m + j],
                                  codes[1][r * m + j]);
        }
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
    const auto cuda = make_executor(context), cpu = make_cpu_executor(2, {});
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
    const auto cuda = make_executor(context), cpu = make_cpu_executor(2, {});
    for (const float shift : {0.0f, 1000.0f})
        for (uint32_t dims : {1u, 3u, 17u, 128u})
            for (uint32_t clusters : {1u, 7u, 33u, 64u}) {
                const size_t rows = small_tests() ? 2000 : 10000;
                std::vector<float> data = clustered(random, rows, dims);
                for (float& x : data) x += shift;
                std::vector<float> same = data;
                const auto on_device = cuda->take(data.data(), rows, dims);
                const auto on_host = cpu->take(same.data(), rows, dims);
                std::vector<float> a(size_t{clusters} * dims), b(a.size());
                cuda->kmeans_start(*on_device, clusters, 1, a.data());
                for (int i = 0; i < 3; ++i) {
                    std::copy(a.begin(), a.end(), b.begin());
                    const ReferenceStep reference(data, dims, a);
                    const double cuda_error = cuda->kmeans_step(*on_device, clusters, a.data());
                    cpu->kmeans_step(*on_host, clusters, b.data());
                    const std::string what = std::to_string(dims) + " dims, " +
                                             std::to_string(clusters) + " clusters, shift " +
                                             std::to_string(shift);
                    reference.check(a, cuda_error, dims, what);
                    reference.check(b, reference.error, dims, what + ", on the CPU");
                }
            }
}

// All start in one place: the others have no rows, and are put beside the one that has.
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

// Most rows are one and the same: it cannot be divided, however large its cluster is, so that the
// empty ones go to the others.
TEST_F(CudaTrain, PassesOverCrowdsOfEqualRows) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context), cpu = make_cpu_executor(2, {});
    const uint32_t dims = 6, clusters = 40;
    const size_t count = 6000;
    std::vector<float> data = clustered(random, count, dims);
    std::fill(data.begin(), data.begin() + 5000 * dims, 0.25f);
    std::vector<float> same = data;
    const auto on_device = cuda->take(data.data(), count, dims);
    const auto on_host = cpu->take(same.data(), count, dims);
    std::vector<float> a(size_t{clusters} * dims, 0.25f), b = a;
    double cuda_error = 0, cpu_error = 0;
    for (int i = 0; i < 20; ++i) {
        cuda_error = cuda->kmeans_step(*on_device, clusters, a.data());
        cpu_error = cpu->kmeans_step(*on_host, clusters, b.data());
    }
    // Both end up in some optimum, where the others have found work.
    EXPECT_LT(cuda_error, 2 * cpu_error);
    const ReferenceStep last(data, dims, a);
    EXPECT_LE(std::count(last.counts.begin(), last.counts.end(), size_t{0}), clusters / 10);
}

// In the corners of pictures pieces are equal in crowds: the start draws most codewords there, and
// they must come away again.
TEST_F(CudaTrain, ReusesCodewords) {
    std::mt19937 random(test_seed());
    const uint32_t dims = 12;
    const size_t count = small_tests() ? 3000 : 30000;
    std::vector<float> data = clustered(random, count, dims);
    for (size_t r = 0; r < count; ++r)
        if (r % 20) std::fill_n(data.begin() + r * dims, dims / 2, 0.5f);
    const QuantizerShape shape{dims, 1, 4, Metric::l2};
    std::vector<float> results[3];
    double errors[3];
    for (int run = 0; run < 3; ++run) {
        // The second time streamed, the third time on the CPU.
        const size_t little = std::max(data.size() * sizeof(float) * 3 / 2, size_t{1} << 20);
        const Context context(options(run == 0 ? size_t{4} << 30 : little, size_t{1} << 20));
        const auto executor = run < 2 ? make_executor(context) : make_cpu_executor(2, {});
        std::vector<float> copy = data;
        const auto residuals = executor->take(copy.data(), count, dims);
        results[run].resize(size_t{dims} * codewords);
        executor->codebook_start(*residuals, shape, 3, results[run].data());
        double first = 0;
        for (int i = 0; i < 12; ++i) {
            errors[run] = executor->codebook_step(*residuals, shape, results[run].data());
            if (i == 0) first = errors[run];
        }
        EXPECT_LT(errors[run], 0.8 * first);
    }
    EXPECT_EQ(results[0], results[1]);
    // The draws are others than the CPU's, and as good.
    EXPECT_NEAR(errors[0], errors[2], 0.1 * errors[2]);
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
    const auto cuda = make_executor(context), cpu = make_cpu_executor(4, {});
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
        for (size_t r = 0; r < rows; ++r) {
            if (lists[0][r] != lists[1][r]) continue;
            const float* centroid = centroids.data() + size_t{lists[0][r]} * c.dims;
            bool same = true;
            for (uint32_t j = 0; j < c.m; ++j) {
                const uint8_t a = codes[0][r * c.m + j], b = codes[1][r * c.m + j];
                if (a == b) continue;
                same = false;
                check_tie(quantizer, data.data() + r * c.dims, centroid, j, a, b);
            }
            if (same) {
                ASSERT_NEAR(offsets[0][r], offsets[1][r], 1e-5 * (1 + std::fabs(offsets[1][r])))
                    << c.dims << " dims, m " << c.m << ", row " << r;
            }
        }
    }
}

TEST_F(CudaTrain, MakesTheResidualsOfTheCpu) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context), cpu = make_cpu_executor(2, {});
    const uint32_t dims = 20, clusters = 12;
    const size_t count = 5000;
    std::vector<float> data = clustered(random, count, dims), same = data;
    const std::vector<float> centroids = clustered(random, clusters, dims);
    const auto on_device = cuda->take(data.data(), count, dims);
    const auto on_host = cpu->take(same.data(), count, dims);
    std::vector<uint32_t> nearest[2] = {std::vector<uint32_t>(count), std::vector<uint32_t>(count)};
    cuda->assign(*on_device, clusters, centroids.data(), nearest[0].data());
    cpu->assign(*on_host, clusters, centroids.data(), nearest[1].data());
    EXPECT_EQ(nearest[0], nearest[1]);
    cuda->make_residuals(*on_device, clusters, centroids.data());
    cpu->make_residuals(*on_host, clusters, centroids.data());
    const QuantizerShape shape{dims, clusters, 5, Metric::l2};
    std::vector<float> a(size_t{dims} * codewords), b(a.size());
    cuda->codebook_start(*on_device, shape, 5, a.data());
    cpu->codebook_start(*on_host, shape, 5, b.data());
    EXPECT_EQ(a, b);
    // Each piece is a k-means of its own. `same` holds the residuals now.
    for (int i = 0; i < 3; ++i) {
        std::copy(a.begin(), a.end(), b.begin());
        const std::vector<float> before = a;
        const double cuda_error = cuda->codebook_step(*on_device, shape, a.data());
        cpu->codebook_step(*on_host, shape, b.data());
        double error = 0;
        for (uint32_t j = 0; j < shape.m; ++j) {
            const uint32_t begin = shape.piece_begin(j);
            const uint32_t piece_dims = shape.piece_begin(j + 1) - begin;
            const auto words = [&](const std::vector<float>& codebook) {
                std::vector<float> piece(size_t{codewords} * piece_dims);
                for (uint32_t c = 0; c < codewords; ++c)
                    for (uint32_t d = 0; d < piece_dims; ++d)
                        piece[c * piece_dims + d] = codebook[size_t{begin + d} * codewords + c];
                return piece;
            };
            std::vector<float> rows(count * piece_dims);
            for (size_t r = 0; r < count; ++r)
                std::copy_n(same.begin() + r * dims + begin, piece_dims,
                            rows.begin() + r * piece_dims);
            const ReferenceStep reference(rows, piece_dims, words(before));
            error += reference.error;
            reference.check(words(a), reference.error, piece_dims, "piece " + std::to_string(j));
            reference.check(words(b), reference.error, piece_dims,
                            "piece " + std::to_string(j) + ", on the CPU");
        }
        EXPECT_NEAR(cuda_error, error, 2e-5 * error);
    }
}

TEST_F(CudaTrain, LeaksNothing) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context);
    const uint32_t dims = 9, clusters = 5;
    const size_t count = 700;
    std::vector<float> data = clustered(random, count, dims);
    const QuantizerShape shape{dims, clusters, 3, Metric::l2};
    std::vector<float> centroids(size_t{clusters} * dims), codebook(size_t{dims} * codewords);
    std::vector<uint32_t> lists(count);
    std::vector<uint8_t> codes(count * shape.m);
    std::vector<float> offsets(count);
    std::vector<uint64_t> ids(count);
    std::vector<Neighbor> nearest(20 * 10);
    const size_t used = context.memory.use().used;
    size_t free_before = 0, free_after = 0, total = 0;
    const int rounds = small_tests() ? 4 : 400;
    for (int i = 0; i < rounds; ++i) {
        std::fill(nearest.begin(), nearest.end(),
                  Neighbor{std::numeric_limits<float>::infinity(), 0});
        cuda->exact_search({data.data(), 20, data.data(), count, ids.data(), dims, Metric::l2, 10,
                            nearest.data()});
        const auto rows = cuda->take(data.data(), count, dims);
        cuda->kmeans_start(*rows, clusters, 1, centroids.data());
        cuda->kmeans_step(*rows, clusters, centroids.data());
        cuda->make_residuals(*rows, clusters, centroids.data());
        cuda->codebook_start(*rows, shape, 1, codebook.data());
        cuda->codebook_step(*rows, shape, codebook.data());
        cuda->encode({shape, centroids.data(), codebook.data()},
                     {data.data(), count, lists.data(), codes.data(), offsets.data()});
        if (i == rounds / 2) check(cudaMemGetInfo(&free_before, &total), "cudaMemGetInfo");
    }
    EXPECT_EQ(context.memory.use().used, used);
    check(cudaMemGetInfo(&free_after, &total), "cudaMemGetInfo");
    EXPECT_GE(free_after, free_before) << "or another process is on the device";
}

TEST_F(CudaTrain, StopsWhenInterrupted) {
    std::mt19937 random(test_seed());
    volatile std::sig_atomic_t interrupt = 0;
    DeviceOptions wanted = options();
    wanted.interrupts = &interrupt;
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

// Little data, for tools that check every access. Pieces of 4, 8 and 14 dimensions have a kernel
// each.
// Many rows at a time are encoded by blocks of fewer warps than some are.
TEST_F(CudaTrain, EncodesManyRowsAsSome) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context);
    const uint32_t dims = 38, clusters = 50;
    const size_t count = 300 * size_t{context.processors}, part = count / 7 + 3;
    std::vector<float> data = clustered(random, count, dims);
    std::vector<float> centroids(clusters * dims), codebook(size_t{dims} * codewords);
    const auto rows = cuda->take(data.data(), 5000, dims);
    cuda->kmeans_start(*rows, clusters, 1, centroids.data());
    cuda->kmeans_step(*rows, clusters, centroids.data());
    cuda->make_residuals(*rows, clusters, centroids.data());
    // The sample may have been changed in place.
    data = clustered(random, count, dims);
    for (const uint32_t m : {10u, 5u, 3u}) {
        const QuantizerShape shape{dims, clusters, m, Metric::l2};
        cuda->codebook_start(*rows, shape, 1, codebook.data());
        const Quantizer quantizer{shape, centroids.data(), codebook.data()};
        std::vector<uint32_t> lists(count), same_lists(count);
        std::vector<uint8_t> codes(count * m), same_codes(count * m);
        std::vector<float> offsets(count), same_offsets(count);
        cuda->encode(quantizer, {data.data(), count, lists.data(), codes.data(), offsets.data()});
        for (size_t first = 0; first < count; first += part)
            cuda->encode(quantizer, {data.data() + first * dims, std::min(part, count - first),
                                     same_lists.data() + first, same_codes.data() + first * m,
                                     same_offsets.data() + first});
        EXPECT_EQ(lists, same_lists) << m;
        EXPECT_EQ(codes, same_codes) << m;
        for (size_t r = 0; r < count; ++r)
            ASSERT_NEAR(offsets[r], same_offsets[r], 1e-6f * std::fabs(offsets[r]) + 1e-6f)
                << m << ", row " << r;
    }
}

TEST_F(CudaTrain, EveryKernelOnce) {
    std::mt19937 random(test_seed());
    train_once(random, {10, 5, 3});
}

// Longer ones go through cuBLAS, which racecheck breaks down on. The kernels around it use no
// shared memory.
TEST_F(CudaTrain, LongPiecesOnce) {
    std::mt19937 random(test_seed());
    train_once(random, {1});
}

}  // namespace
}  // namespace pgwarp::gpu
