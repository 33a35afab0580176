// Local search quantization: that the search finds what there is to find, that codebooks fit their
// codes, and that an index gets what it counts on.

#include "kernels/additive.h"
#include "kernels/cpu/lsq_scores.h"
#include "kernels/executor.h"
#include "kernels/list_scan.h"
#include "kernels/lsq.h"
#include "kernels/product_quantizer.h"
#include "kernels/rotation.h"

#include <cmath>
#include <csignal>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/reference.h"

namespace pgwarp {
namespace {

using LsqTest = EveryTarget;

std::vector<float> random_words(std::mt19937& random, const LsqShape& shape) {
    return normal_floats(random, shape.words() * shape.dims,
                         1 / std::sqrt(static_cast<float>(shape.books)));
}

double error_of(const LsqShape& shape, const std::vector<float>& words, const float* row,
                const uint8_t* code) {
    double error = 0;
    for (uint32_t d = 0; d < shape.dims; ++d) {
        double off = row[d];
        for (uint32_t k = 0; k < shape.books; ++k)
            off -= words[(size_t{k} * codewords + code[k]) * shape.dims + d];
        error += off * off;
    }
    return error;
}

double sum_of_errors(const LsqShape& shape, const std::vector<float>& words,
                     const std::vector<float>& rows, const std::vector<uint8_t>& codes) {
    double sum = 0;
    for (size_t i = 0; i < rows.size() / shape.dims; ++i)
        sum += error_of(shape, words, rows.data() + i * shape.dims, codes.data() + i * shape.books);
    return sum;
}

std::vector<float> low_rank_rows(std::mt19937& random, size_t count, uint32_t dims) {
    const std::vector<float> mix = normal_floats(random, size_t{dims} * dims);
    std::vector<float> rows(count * dims);
    for (size_t i = 0; i < count; ++i) {
        std::vector<float> free = normal_floats(random, dims);
        for (uint32_t k = 0; k < dims; ++k) free[k] *= std::pow(0.8f, static_cast<float>(k));
        for (uint32_t d = 0; d < dims; ++d)
            rows[i * dims + d] = static_cast<float>(
                reference_product(mix.data() + size_t{d} * dims, free.data(), dims));
    }
    return rows;
}

TEST_P(LsqTest, FindsTheSmallestSum) {
    for (int round = 0; round < 200; ++round) {
        const auto count = static_cast<uint32_t>(between(random, 1, 16));
        // Few values: ties, of which the lowest number wins.
        const size_t most = round % 2 ? 4000 : 3;
        std::vector<std::vector<uint16_t>> terms(count, std::vector<uint16_t>(codewords));
        std::vector<const uint16_t*> pointers;
        for (auto& term : terms) {
            for (uint16_t& x : term) x = static_cast<uint16_t>(between(random, 0, most));
            pointers.push_back(term.data());
        }
        uint32_t best = 0, least = ~0u;
        for (uint32_t c = 0; c < codewords; ++c) {
            uint32_t sum = 0;
            for (const auto& term : terms) sum += term[c];
            if (sum < least) least = sum, best = c;
        }
        ASSERT_EQ(argmin_of_sums(pointers.data(), count), best);
    }
}

// Two codebooks have 65,536 codes: all of them can be tried.
TEST_P(LsqTest, FindsTheBestOfAllCodes) {
    const LsqShape shape{6, 2};
    const std::vector<float> words = random_words(random, shape);
    const size_t count = 40;
    const std::vector<float> rows = normal_floats(random, count * shape.dims);
    Workers workers(1);
    std::vector<uint8_t> codes(count * shape.books);
    LsqSearch search;
    search.rounds = 1000;
    const double sum = LsqEncoder(workers, shape, words.data())
                           .encode(workers, search, rows.data(), count, false, codes.data());
    double best = 0;
    for (size_t i = 0; i < count; ++i) {
        double least = std::numeric_limits<double>::infinity();
        for (uint32_t code = 0; code < 65536; ++code) {
            const uint8_t both[2] = {static_cast<uint8_t>(code), static_cast<uint8_t>(code >> 8)};
            least = std::min(least, error_of(shape, words, rows.data() + i * shape.dims, both));
        }
        best += least;
    }
    EXPECT_NEAR(sum, sum_of_errors(shape, words, rows, codes), 1e-4 * sum);
    EXPECT_GE(sum, best * (1 - 1e-5));
    EXPECT_LE(sum, best * 1.05);
}

TEST_P(LsqTest, OneCodebookIsTheNearestWord) {
    const LsqShape shape{9, 1};
    const std::vector<float> words = random_words(random, shape);
    const std::vector<float> rows = normal_floats(random, 100 * shape.dims);
    Workers workers(1);
    std::vector<uint8_t> codes(100);
    LsqEncoder(workers, shape, words.data()).encode({}, rows.data(), 100, false, codes.data());
    for (size_t i = 0; i < 100; ++i) {
        const float* row = rows.data() + i * shape.dims;
        double least = std::numeric_limits<double>::infinity();
        for (uint32_t c = 0; c < codewords; ++c) {
            const auto code = static_cast<uint8_t>(c);
            least = std::min(least, error_of(shape, words, row, &code));
        }
        EXPECT_LE(error_of(shape, words, row, &codes[i]), least + 1e-4);
    }
}

TEST_P(LsqTest, MoreRoundsAreBetterAndCodesAreTheRowsOwn) {
    const LsqShape shape{24, 7};
    const std::vector<float> words = random_words(random, shape);
    const size_t count = 333;
    const std::vector<float> rows = normal_floats(random, count * shape.dims);
    Workers one(1), two(2);
    const LsqEncoder encoder(two, shape, words.data());
    double before = std::numeric_limits<double>::infinity();
    std::vector<uint8_t> codes(count * shape.books);
    for (const uint32_t rounds : {0u, 4u, 16u, 64u}) {
        LsqSearch search;
        search.rounds = rounds;
        const double error = encoder.encode(two, search, rows.data(), count, false, codes.data());
        EXPECT_LT(error, before);
        before = error;
    }
    // Whatever the number of threads and the rows around.
    LsqSearch search;
    search.rounds = 64;
    std::vector<uint8_t> again(codes.size());
    encoder.encode(one, search, rows.data(), count, false, again.data());
    EXPECT_EQ(codes, again);
    std::vector<uint8_t> single(shape.books);
    size_t same = 0;
    for (size_t i = 0; i < count; ++i) {
        encoder.encode(search, rows.data() + i * shape.dims, 1, false, single.data());
        same += std::equal(single.begin(), single.end(), codes.begin() + i * shape.books);
    }
    EXPECT_GE(same, count * 8 / 10);
    std::vector<uint8_t> half(count / 2 * shape.books);
    encoder.encode(search, rows.data(), count / 2, false, half.data());
    EXPECT_TRUE(std::equal(half.begin(), half.end(), codes.begin()));
    // Improving what is there makes nothing worse.
    const double improved = encoder.encode(two, search, rows.data(), count, true, again.data());
    EXPECT_LE(improved, before * (1 + 1e-6));
}

TEST_P(LsqTest, SurvivesExtremes) {
    Workers workers(1);
    for (const float size : {0.0f, 1e-30f, 1e15f, 1e30f}) {
        const LsqShape shape{5, 4};
        std::vector<float> words = random_words(random, shape);
        for (float& w : words) w *= size;
        std::vector<float> rows = normal_floats(random, 50 * shape.dims, size);
        rows[0] = 3e38f;
        std::vector<uint8_t> codes(50 * shape.books), again(codes.size());
        const LsqEncoder encoder(workers, shape, words.data());
        encoder.encode({}, rows.data(), 50, false, codes.data());
        encoder.encode({}, rows.data(), 50, false, again.data());
        EXPECT_EQ(codes, again);
    }
}

// The gradient of the sum of squares, with the weight on small words, is zero.
TEST_P(LsqTest, FitsWordsToCodes) {
    const LsqShape shape{7, 3};
    const size_t count = 5000;
    const std::vector<float> rows = low_rank_rows(random, count, shape.dims);
    std::vector<uint8_t> codes(count * shape.books);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
    std::vector<float> words = random_words(random, shape);
    Workers workers(2);
    const double before = sum_of_errors(shape, words, rows, codes);
    lsq_fit(workers, shape, rows.data(), count, codes.data(), words.data());
    const double after = sum_of_errors(shape, words, rows, codes);
    EXPECT_LT(after, before);
    const double step = 1e-2;
    for (int round = 0; round < 20; ++round) {
        std::vector<float> moved = words;
        moved[between(random, 0, words.size() - 1)] +=
            static_cast<float>(random() % 2 ? step : -step);
        EXPECT_GT(sum_of_errors(shape, moved, rows, codes), after * (1 - 1e-7));
    }
}

TEST_P(LsqTest, LosesLessThanTheRotatedProductQuantizerItStartsFrom) {
    const LsqShape shape{16, 3};
    const size_t count = 6000;
    const std::vector<float> rows = low_rank_rows(random, count, shape.dims);
    Workers workers(2);
    std::vector<float> words(shape.words() * shape.dims);
    std::vector<uint8_t> codes(count * shape.books);
    lsq_start(workers, shape, rows.data(), count, 1, words.data(), codes.data());
    const double start = sum_of_errors(shape, words, rows, codes);
    QuantizerShape index{shape.dims, 1, shape.books, Metric::l2};
    index.search_rounds = 16;
    const auto train = [&] {
        std::vector<float> codebook(words.size()), trained(words.size());
        std::vector<uint8_t> found = codes;
        codebook_of_words(shape, words.data(), codebook.data());
        const uint32_t steps = lsq_iterations(count);
        for (uint32_t step = 0; step < steps; ++step)
            lsq_step(workers, {index, step, steps, 1, codebook.data(), found.data()}, rows.data(),
                     count);
        words_of_codebook(shape, codebook.data(), trained.data());
        return trained;
    };
    const std::vector<float> trained = train();
    std::vector<uint8_t> found(codes.size());
    const double error = LsqEncoder(workers, shape, trained.data())
                             .encode(workers, {}, rows.data(), count, false, found.data());
    EXPECT_LT(error, 0.85 * start);
    // The same seed, the same words.
    EXPECT_EQ(trained, train());
}

TEST_P(LsqTest, RelaxesLessAndLess) {
    const LsqShape shape{11, 3};
    const std::vector<float> words = random_words(random, shape);
    const std::vector<float> spread(shape.dims, 2.0f);
    double before = std::numeric_limits<double>::infinity();
    for (uint32_t step = 0; step < 10; ++step) {
        std::vector<float> moved = words;
        lsq_relax(shape, spread.data(), 1, step, 10, 1, moved.data());
        const double sum = reference_squared_l2(moved.data(), words.data(), words.size());
        if (step < 7)
            EXPECT_GT(sum, 0);
        else
            EXPECT_EQ(sum, 0);
        EXPECT_LE(sum, before);
        before = sum;
    }
}

TEST_P(LsqTest, LevelsAreTheNearest) {
    std::vector<float> values = normal_floats(random, 5000, 100);
    std::vector<float> levels(codewords);
    fit_levels(values, levels.data());
    EXPECT_TRUE(std::is_sorted(levels.begin(), levels.end()));
    double error = 0, spread = 0;
    for (const float value : values) {
        float least = std::numeric_limits<float>::infinity();
        for (const float level : levels) least = std::min(least, std::fabs(level - value));
        const float off = std::fabs(levels[nearest_level(levels.data(), value)] - value);
        EXPECT_EQ(off, least);
        error += double{off} * off;
        spread += double{value} * value;
    }
    EXPECT_LT(error, 1e-4 * spread);
}

TEST_P(LsqTest, CodebooksAndWordsAreTheSame) {
    const LsqShape shape{13, 4};
    const std::vector<float> words = random_words(random, shape);
    std::vector<float> codebook(words.size()), back(words.size());
    codebook_of_words(shape, words.data(), codebook.data());
    EXPECT_EQ(codebook[(2 * size_t{13} + 5) * codewords + 77],
              words[(2 * size_t{codewords} + 77) * 13 + 5]);
    words_of_codebook(shape, codebook.data(), back.data());
    EXPECT_EQ(words, back);
}

// Entries of an index: what a scan makes of table, offset and list is the distance of what the
// code stands for.
TEST_P(LsqTest, ScansWhatItEncoded) {
    for (const Metric metric : {Metric::l2, Metric::inner_product, Metric::cosine}) {
        QuantizerShape shape{21, 9, 5, metric};
        shape.search_rounds = 4;
        const RandomModel model(random, shape);
        const size_t count = 300;
        const std::vector<float> rows = normal_floats(random, count * shape.dims);
        std::vector<uint32_t> lists(count);
        std::vector<uint8_t> codes(count * shape.m);
        std::vector<float> offsets(count);
        const auto executor = make_cpu_executor(2, {});
        executor->encode(model.quantizer(),
                         {rows.data(), count, lists.data(), codes.data(), offsets.data()});
        const std::vector<float> query = normal_floats(random, shape.dims);
        std::vector<float> table(size_t{shape.m} * codewords);
        build_table(model.quantizer(), query.data(), table.data());
        double near = 0, far = 0;
        for (size_t i = 0; i < count; ++i) {
            const float* centroid = model.centroids.data() + size_t{lists[i]} * shape.dims;
            const std::vector<float> stood_for =
                decoded(model.quantizer(), lists[i], codes.data() + i * shape.m);
            const bool products = metric == Metric::inner_product;
            double scanned = offsets[i];
            scanned += products ? -reference_product(query.data(), centroid, shape.dims)
                                : reference_squared_l2(query.data(), centroid, shape.dims);
            for (uint32_t j = 0; j < shape.m; ++j)
                scanned += table[size_t{j} * codewords + codes[i * shape.m + j]];
            const double expected =
                products ? -reference_product(query.data(), stood_for.data(), shape.dims)
                         : reference_squared_l2(query.data(), stood_for.data(), shape.dims);
            EXPECT_NEAR(scanned, expected, 1e-3);
            near +=
                reference_squared_l2(rows.data() + i * shape.dims, stood_for.data(), shape.dims);
            far += reference_squared_l2(rows.data() + i * shape.dims, centroid, shape.dims);
        }
        EXPECT_LT(near, 0.5 * far);
    }
}

TEST_P(LsqTest, EncodesWithTheModelOfTheTime) {
    QuantizerShape shape{8, 2, 3, Metric::l2};
    shape.search_rounds = 4;
    const RandomModel first(random, shape), second(random, shape);
    const size_t count = 100;
    const std::vector<float> rows = normal_floats(random, count * shape.dims);
    std::vector<uint32_t> lists(count);
    std::vector<float> offsets(count);
    std::vector<uint8_t> codes(count * shape.m), fresh(codes.size());
    const auto executor = make_cpu_executor(1, {});
    for (const RandomModel* model : {&first, &second, &first}) {
        executor->encode(model->quantizer(),
                         {rows.data(), count, lists.data(), codes.data(), offsets.data()});
        make_cpu_executor(1, {})->encode(
            model->quantizer(), {rows.data(), count, lists.data(), fresh.data(), offsets.data()});
        EXPECT_EQ(codes, fresh);
    }
}

TEST_P(LsqTest, StepsOfAnExecutorLowerTheError) {
    QuantizerShape shape{12, 1, 4, Metric::l2};
    shape.search_rounds = 16;
    const size_t count = 4000;
    std::vector<float> rows = low_rank_rows(random, count, shape.dims);
    const auto executor = make_cpu_executor(2, {});
    const auto data = executor->take(rows.data(), count, shape.dims);
    const QuantizerShape product{shape.dims, 1, shape.m, Metric::l2};
    std::vector<float> matrix(size_t{shape.dims} * shape.dims),
        pieces(size_t{shape.dims} * codewords);
    executor->rotation_start({*data, count}, product, 1, matrix.data(), pieces.data());
    std::vector<uint8_t> codes(count * shape.m);
    std::vector<float> codebook(size_t{shape.codebook_rows()} * codewords);
    additive_start(shape, matrix.data(), pieces.data(), codebook.data());
    double first = 0, error = 0;
    const uint32_t steps = 8;
    for (uint32_t step = 0; step < steps; ++step) {
        error =
            executor->additive_step(*data, {shape, step, steps, 7, codebook.data(), codes.data()});
        if (step == 0) first = error;
    }
    EXPECT_LT(error, first);

    // A step that is interrupted leaves the codebook as it was.
    volatile std::sig_atomic_t interrupt = 1;
    const auto stopped = make_cpu_executor(2, &interrupt);
    const auto its_data = stopped->take(rows.data(), count, shape.dims);
    const std::vector<float> before = codebook;
    EXPECT_THROW(
        stopped->additive_step(*its_data, {shape, 0, steps, 7, codebook.data(), codes.data()}),
        Interrupted);
    EXPECT_EQ(codebook, before);
}

PGWARP_EVERY_TARGET(LsqTest);

}  // namespace
}  // namespace pgwarp
