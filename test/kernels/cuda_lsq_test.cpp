// Local search quantization on the device against the CPU: the same search, in the same whole
// numbers, from products and errors that differ by rounding.

#include "kernels/additive.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/train/lsq_encoder.h"
#include "kernels/cuda/train/sums.h"
#include "kernels/cuda/train/word_fit.h"
#include "kernels/executor.h"

#include <cmath>
#include <csignal>
#include <numeric>
#include <string>

#include "test/kernels/cuda_fixture.h"

namespace pgwarp::gpu {
namespace {

class CudaLsqTest : public CudaTest {
  protected:
    struct Codes {
        std::vector<uint8_t> codes;
        std::vector<float> errors;
        double sum() const { return std::accumulate(errors.begin(), errors.end(), 0.0); }
    };

    static Codes encode(const Context& context, const LsqShape& shape,
                        const std::vector<float>& words, const LsqSearch& search,
                        const std::vector<float>& rows, const std::vector<uint8_t>* before = {}) {
        const size_t count = rows.size() / shape.dims;
        Stream stream;
        const Blas blas(stream);
        LsqEncoder encoder(context, stream, blas, shape, words.data());
        const Buffer<float> device_rows = upload(context, rows);
        Buffer<uint8_t> codes(context.memory, count * shape.books);
        Buffer<float> errors(context.memory, count);
        if (before) copy_async(codes.data(), before->data(), before->size(), stream);
        encoder.encode(search, device_rows.data(), count, before != nullptr, codes.data(),
                       errors.data());
        stream.synchronize();
        return {download(codes), download(errors)};
    }

    static std::vector<float> random_words(std::mt19937& random, const LsqShape& shape) {
        return normal_floats(random, shape.words() * shape.dims,
                             1 / std::sqrt(static_cast<float>(shape.books)));
    }
};

TEST_F(CudaLsqTest, FindsTheCodesOfTheCpu) {
    const Context context(options());
    std::mt19937 random(test_seed());
    Workers workers(2);
    for (const auto& [dims, books] : {std::pair{128u, 8u},
                                      {128u, 7u},
                                      {96u, 16u},
                                      {33u, 15u},
                                      {5u, 3u},
                                      {1u, 1u},
                                      {200u, 5u}}) {
        const LsqShape shape{dims, books};
        const std::vector<float> words = random_words(random, shape);
        const size_t count = small_tests() ? 37 : 1003;
        const std::vector<float> rows = normal_floats(random, count * dims);
        for (const uint32_t rounds : {0u, 16u}) {
            LsqSearch search;
            search.rounds = rounds;
            const std::string what = std::to_string(dims) + " dims, " + std::to_string(books) +
                                     " books, " + std::to_string(rounds) + " rounds";
            const Codes device = encode(context, shape, words, search, rows);
            std::vector<uint8_t> host(count * books);
            const double host_error =
                pgwarp::LsqEncoder(workers, shape, words.data())
                    .encode(workers, search, rows.data(), count, false, host.data());
            EXPECT_NEAR(device.sum(), host_error, 0.005 * host_error) << what;
            size_t same = 0;
            std::vector<float> decoded(dims);
            for (size_t i = 0; i < count; ++i) {
                same += std::equal(host.begin() + i * books, host.begin() + (i + 1) * books,
                                   device.codes.begin() + i * books);
                lsq_decode(shape, words.data(), device.codes.data() + i * books, decoded.data());
                double error = 0;
                for (uint32_t d = 0; d < dims; ++d) {
                    const double off = double{rows[i * dims + d]} - decoded[d];
                    error += off * off;
                }
                ASSERT_NEAR(device.errors[i], error, 1e-4 * error + 1e-4) << what;
            }
            // A step of a term that is rounded the other way may lead elsewhere, now and then.
            EXPECT_GE(static_cast<double>(same), 0.8 * static_cast<double>(count)) << what;
        }
    }
}

TEST_F(CudaLsqTest, ImprovesCodesAndRepeatsItself) {
    const Context context(options());
    std::mt19937 random(test_seed());
    const LsqShape shape{64, 8};
    const std::vector<float> words = random_words(random, shape);
    const size_t count = small_tests() ? 40 : 2000;
    const std::vector<float> rows = normal_floats(random, count * shape.dims);
    LsqSearch search;
    search.rounds = 4;
    const Codes first = encode(context, shape, words, search, rows);
    EXPECT_EQ(first.codes, encode(context, shape, words, search, rows).codes);
    search.rounds = 16;
    const Codes better = encode(context, shape, words, search, rows, &first.codes);
    EXPECT_LT(better.sum(), first.sum());
    for (size_t i = 0; i < count; ++i) ASSERT_LE(better.errors[i], first.errors[i] * (1 + 1e-6f));
}

TEST_F(CudaLsqTest, SurvivesExtremes) {
    const Context context(options());
    std::mt19937 random(test_seed());
    for (const float size : {0.0f, 1e-30f, 1e15f, 1e30f}) {
        const LsqShape shape{5, 4};
        std::vector<float> words = random_words(random, shape);
        for (float& w : words) w *= size;
        std::vector<float> rows = normal_floats(random, 50 * shape.dims, size);
        rows[0] = 3e38f;
        EXPECT_EQ(encode(context, shape, words, {}, rows).codes,
                  encode(context, shape, words, {}, rows).codes);
    }
}

// Entries as an index wants them: every kernel of encoding and training, through the executor.
TEST_F(CudaLsqTest, EveryKernelOnce) {
    const Context context(options(size_t{1} << 30, size_t{64} << 20));
    std::mt19937 random(test_seed());
    for (const Metric metric : {Metric::l2, Metric::inner_product}) {
        QuantizerShape shape{24, 11, 4, metric};
        shape.search_rounds = 8;
        const std::vector<float> centroids = normal_floats(random, size_t{11} * 24, 3);
        const std::vector<float> codebook =
            normal_floats(random, size_t{shape.codebook_rows()} * codewords, 0.5f);
        const Quantizer quantizer{shape, centroids.data(), codebook.data()};
        const size_t count = small_tests() ? 70 : 5000;
        const std::vector<float> rows = normal_floats(random, count * shape.dims, 3);
        struct Entries {
            std::vector<uint32_t> lists;
            std::vector<uint8_t> codes;
            std::vector<float> offsets;
        };
        const auto encoded = [&](Executor& executor) {
            Entries e{std::vector<uint32_t>(count), std::vector<uint8_t>(count * shape.m),
                      std::vector<float>(count)};
            executor.encode(quantizer,
                            {rows.data(), count, e.lists.data(), e.codes.data(), e.offsets.data()});
            return e;
        };
        const auto device = make_executor(context);
        const auto host = make_cpu_executor(2, {});
        const Entries a = encoded(*device), b = encoded(*host);
        size_t same = 0;
        std::vector<float> decoded(shape.dims);
        std::vector<float> words(codebook.size());
        words_of_codebook(lsq_shape(shape), codebook.data(), words.data());
        for (size_t i = 0; i < count; ++i) {
            same += a.lists[i] == b.lists[i] &&
                    std::equal(a.codes.begin() + i * shape.m, a.codes.begin() + (i + 1) * shape.m,
                               b.codes.begin() + i * shape.m);
            EXPECT_NEAR(a.offsets[i],
                        additive_offset(lsq_shape(shape), metric, words.data(),
                                        centroids.data() + size_t{a.lists[i]} * shape.dims,
                                        a.codes.data() + i * shape.m, decoded.data()),
                        1e-3);
        }
        EXPECT_GE(static_cast<double>(same), 0.8 * static_cast<double>(count));
        EXPECT_EQ(encoded(*device).codes, a.codes);
    }
}

// Conjugate gradients against LAPACK: as good a fit, from far away.
TEST_F(CudaLsqTest, FitsWordsAsLapackDoes) {
    const Context context(options());
    std::mt19937 random(test_seed());
    for (const auto& [dims, books] : {std::pair{40u, 3u}, {7u, 8u}, {1u, 1u}}) {
        const LsqShape shape{dims, books};
        const size_t count = small_tests() ? 800 : 20000;
        const std::vector<float> rows = normal_floats(random, count * dims);
        std::vector<uint8_t> codes(count * books);
        // Some words are used seldom, and some never.
        for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % (1 + random() % 250));
        const std::vector<float> start = random_words(random, shape);
        std::vector<float> by_lapack = start;
        Workers workers(2);
        lsq_fit(workers, shape, rows.data(), count, codes.data(), by_lapack.data());

        Stream stream;
        const Blas blas(stream);
        const Buffer<float> device_rows = upload(context, rows);
        const Buffer<uint8_t> device_codes = upload(context, codes);
        Buffer<float> words = upload(context, start);
        Buffer<unsigned long long> sums(context.memory, words.size());
        Buffer<uint32_t> together(context.memory, shape.words() * shape.words());
        clear_async(sums.data(), sums.size(), stream);
        clear_async(together.data(), together.size(), stream);
        const double factor = fixed_point_factor(10, count);
        add_words(
            {device_rows.data(), device_codes.data(), count, dims, books, factor, sums.data()},
            stream);
        count_together(shape, device_codes.data(), count, together.data(), stream);
        fit_words(context, stream, blas,
                  {shape, count, together.data(), sums.data(), factor, words.data()});
        const auto error_of = [&](const std::vector<float>& fitted) {
            std::vector<float> decoded(dims);
            double sum = 0;
            for (size_t i = 0; i < count; ++i) {
                lsq_decode(shape, fitted.data(), codes.data() + i * books, decoded.data());
                for (uint32_t d = 0; d < dims; ++d) {
                    const double off = double{rows[i * dims + d]} - decoded[d];
                    sum += off * off;
                }
            }
            return sum;
        };
        const double wanted = error_of(by_lapack);
        // With more words than rows nearly nothing is left, by either.
        const double before = error_of(start);
        EXPECT_LT(error_of(download(words)), wanted * 1.01 + 1e-6 * before)
            << dims << " x " << books;
        EXPECT_GT(before, wanted);
    }
}

TEST_F(CudaLsqTest, TrainsAsTheCpuDoes) {
    const Context context(options());
    std::mt19937 random(test_seed());
    QuantizerShape shape{16, 1, 3, Metric::l2};
    shape.search_rounds = 16;
    const size_t count = small_tests() ? 600 : 6000;
    std::vector<float> rows = normal_floats(random, count * shape.dims);
    for (size_t i = 0; i < rows.size(); ++i)
        rows[i] *= std::pow(0.8f, static_cast<float>(i % shape.dims));
    const std::vector<float> start =
        normal_floats(random, size_t{shape.codebook_rows()} * codewords, 0.3f);
    const auto train = [&](Executor& executor, std::vector<float>* codebook) {
        const auto data = executor.take(rows.data(), count, shape.dims);
        *codebook = start;
        std::vector<uint8_t> codes(count * shape.m);
        double error = 0;
        const uint32_t steps = small_tests() ? 2 : 6;
        for (uint32_t step = 0; step < steps; ++step)
            error = executor.additive_step(*data,
                                           {shape, step, steps, 3, codebook->data(), codes.data()});
        return error;
    };
    std::vector<float> on_device, again, on_host;
    const auto device = make_executor(context);
    const double device_error = train(*device, &on_device);
    EXPECT_EQ(train(*device, &again), device_error);
    EXPECT_EQ(on_device, again);
    const double host_error = train(*make_cpu_executor(2, {}), &on_host);
    EXPECT_NEAR(device_error, host_error, 0.03 * host_error);

    // A step that is interrupted leaves the codebook as it was.
    volatile std::sig_atomic_t interrupt = 0;
    DeviceOptions stopped = options();
    stopped.interrupts = &interrupt;
    const Context other(stopped);
    const auto executor = make_executor(other);
    const auto data = executor->take(rows.data(), count, shape.dims);
    std::vector<uint8_t> codes(count * shape.m);
    interrupt = 1;
    EXPECT_THROW(executor->additive_step(*data, {shape, 0, 2, 3, again.data(), codes.data()}),
                 Interrupted);
    EXPECT_EQ(on_device, again);
}

}  // namespace
}  // namespace pgwarp::gpu
