// Training codebooks and encoding, against float64.

#include "kernels/product_quantizer.h"

#include "kernels/kmeans.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/guarded.h"
#include "test/kernels/reference.h"

namespace pgwarp {
namespace {

constexpr Metric metrics[] = {Metric::l2, Metric::inner_product, Metric::cosine};

QuantizerShape random_shape(std::mt19937& random, uint32_t most_dims = 200) {
    const auto dims = static_cast<uint32_t>(between(random, 1, most_dims));
    const auto m = static_cast<uint32_t>(between(random, 1, dims));
    return {dims, static_cast<uint32_t>(between(random, 1, 40)), m, metrics[between(random, 0, 2)]};
}

struct Encoded {
    std::vector<uint32_t> lists;
    std::vector<uint8_t> codes;
    std::vector<float> offsets;

    Encoded(size_t count, uint32_t m) : lists(count), codes(count * m), offsets(count) {}
    Encoding into(const std::vector<float>& rows) {
        return {rows.data(), lists.size(), lists.data(), codes.data(), offsets.data()};
    }
    bool operator==(const Encoded& other) const {
        return lists == other.lists && codes == other.codes && offsets == other.offsets;
    }
};

Encoded encoded(const Quantizer& quantizer, const std::vector<float>& rows, int threads = 1) {
    Workers workers(threads);
    Encoded result(rows.size() / quantizer.shape.dims, quantizer.shape.m);
    encode(workers, quantizer, result.into(rows));
    return result;
}

// Squared distance of a residual's piece from one of its codewords.
double piece_error(const Quantizer& quantizer, uint32_t j, const float* residual, uint8_t code) {
    double error = 0;
    for (uint32_t d = quantizer.shape.piece_begin(j); d < quantizer.shape.piece_begin(j + 1); ++d) {
        const double off = double{residual[d]} - codeword_at(quantizer, d, code);
        error += off * off;
    }
    return error;
}

// How far from the nearest a chosen codeword may be: rounding is relative to the norms.
double piece_tolerance(const Quantizer& quantizer, uint32_t j, const float* residual) {
    const uint32_t begin = quantizer.shape.piece_begin(j), end = quantizer.shape.piece_begin(j + 1);
    double most = 0;
    for (uint32_t c = 0; c < codewords; ++c) {
        double norms = 0;
        for (uint32_t d = begin; d < end; ++d) {
            const double w = codeword_at(quantizer, d, static_cast<uint8_t>(c));
            norms += w * w + double{residual[d]} * residual[d];
        }
        most = std::max(most, norms);
    }
    return most * (8 + 4 * std::sqrt(static_cast<double>(end - begin))) * 0x1p-24;
}

void expect_nearest_codeword(const Quantizer& quantizer, uint32_t j, const float* residual,
                             uint8_t code) {
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t c = 0; c < codewords; ++c)
        least = std::min(least, piece_error(quantizer, j, residual, static_cast<uint8_t>(c)));
    ASSERT_LE(piece_error(quantizer, j, residual, code),
              least + piece_tolerance(quantizer, j, residual));
}

// |r'|^2 + 2 <c, r'>, and what rounding is relative to.
struct Offset {
    double value = 0;
    double magnitude = 0;
};

Offset reference_offset(const Quantizer& quantizer, uint32_t list, const uint8_t* code) {
    Offset offset;
    if (quantizer.shape.metric == Metric::inner_product) return offset;
    for (uint32_t j = 0; j < quantizer.shape.m; ++j)
        for (uint32_t d = quantizer.shape.piece_begin(j); d < quantizer.shape.piece_begin(j + 1);
             ++d) {
            const double r = codeword_at(quantizer, d, code[j]);
            const double c = quantizer.centroids[size_t{list} * quantizer.shape.dims + d];
            offset.value += r * (r + 2 * c);
            offset.magnitude += std::fabs(r * r) + std::fabs(2 * r * c);
        }
    return offset;
}

class ProductQuantizer : public EveryTarget {};

TEST_P(ProductQuantizer, PiecesCoverAllDimensions) {
    const auto check = [](uint32_t dims, uint32_t m) {
        const QuantizerShape shape{dims, 1, m, Metric::l2};
        ASSERT_EQ(shape.piece_begin(0), 0u);
        ASSERT_EQ(shape.piece_begin(m), dims);
        for (uint32_t j = 0; j < m; ++j) {
            const uint32_t size = shape.piece_begin(j + 1) - shape.piece_begin(j);
            ASSERT_GE(size, dims / m) << dims << " dims, " << m << " pieces";
            ASSERT_LE(size, (dims + m - 1) / m) << dims << " dims, " << m << " pieces";
        }
    };
    for (uint32_t dims = 1; dims <= 120; ++dims)
        for (uint32_t m = 1; m <= dims; ++m) check(dims, m);
    for (const uint32_t dims : {784u, 1536u, 16000u, 2000000000u})
        for (const uint32_t m : {1u, 7u, 333u, 784u}) check(dims, m);
}

TEST_P(ProductQuantizer, EncodesAsFloat64Does) {
    for (int i = 0; i < 12; ++i) {
        const RandomModel model(random, random_shape(random, 120));
        const Quantizer quantizer = model.quantizer();
        const QuantizerShape& shape = quantizer.shape;
        SCOPED_TRACE(testing::Message() << shape);
        const size_t count = between(random, 1, 150);
        const std::vector<float> rows = normal_floats(random, count * shape.dims);
        const Encoded found = encoded(quantizer, rows);

        std::vector<uint32_t> nearest(count);
        Workers workers(1);
        assign_nearest(workers, {rows.data(), count, shape.dims, quantizer.centroids, shape.lists,
                                 nearest.data(), nullptr});
        ASSERT_EQ(found.lists, nearest);

        std::vector<float> residuals = rows;
        subtract_centroids(residuals.data(), count, shape.dims, quantizer.centroids,
                           nearest.data());
        for (size_t row = 0; row < count; ++row) {
            const uint8_t* code = found.codes.data() + row * shape.m;
            for (uint32_t j = 0; j < shape.m; ++j)
                expect_nearest_codeword(quantizer, j, residuals.data() + row * shape.dims, code[j]);
            const Offset offset = reference_offset(quantizer, nearest[row], code);
            ASSERT_NEAR(found.offsets[row], offset.value,
                        std::fabs(offset.value) * 0x1p-23 + offset.magnitude * 1e-14);
        }
    }
}

TEST_P(ProductQuantizer, KnownListsAndThreadsChangeNothing) {
    for (int i = 0; i < 10; ++i) {
        const RandomModel model(random, random_shape(random));
        const Quantizer quantizer = model.quantizer();
        const std::vector<float> rows =
            normal_floats(random, between(random, 0, 500) * quantizer.shape.dims);
        const Encoded found = encoded(quantizer, rows);

        Workers workers(3);
        Encoded again(found.lists.size(), quantizer.shape.m);
        again.lists = found.lists;
        encode_assigned(workers, quantizer, again.into(rows));
        EXPECT_TRUE(again == found) << quantizer.shape;
        EXPECT_TRUE(encoded(quantizer, rows, 4) == found) << quantizer.shape;
    }
}

// A row's code must not depend on the rows beside it, or an insert would differ from a build.
TEST_P(ProductQuantizer, ARowIsEncodedAsItIsAlone) {
    for (int i = 0; i < 5; ++i) {
        const RandomModel model(random, random_shape(random, 60));
        const Quantizer quantizer = model.quantizer();
        const QuantizerShape& shape = quantizer.shape;
        const size_t count = between(random, 2, 140);
        const std::vector<float> rows = normal_floats(random, count * shape.dims);
        Encoded all(count, shape.m);
        for (uint32_t& list : all.lists)
            list = static_cast<uint32_t>(between(random, 0, shape.lists - 1));
        Workers workers(1);
        encode_assigned(workers, quantizer, all.into(rows));
        for (size_t row = 0; row < count; ++row) {
            const std::vector<float> alone(rows.begin() + row * shape.dims,
                                           rows.begin() + (row + 1) * shape.dims);
            Encoded one(1, shape.m);
            one.lists[0] = all.lists[row];
            encode_assigned(workers, quantizer, one.into(alone));
            ASSERT_EQ(std::memcmp(one.codes.data(), all.codes.data() + row * shape.m, shape.m), 0)
                << shape << ", row " << row;
            ASSERT_EQ(one.offsets[0], all.offsets[row]);
        }
    }
}

TEST_P(ProductQuantizer, TheLowestOfEqualCodewordsIsTaken) {
    for (int i = 0; i < 10; ++i) {
        RandomModel model(random, random_shape(random, 30));
        const QuantizerShape& shape = model.shape;
        model.codebook = whole_floats(random, model.codebook.size(), 2);
        model.centroids = whole_floats(random, model.centroids.size());
        const Quantizer quantizer = model.quantizer();
        const size_t count = 20;
        const std::vector<float> rows = whole_floats(random, count * shape.dims);
        const Encoded found = encoded(quantizer, rows);
        std::vector<float> residuals = rows;
        subtract_centroids(residuals.data(), count, shape.dims, quantizer.centroids,
                           found.lists.data());
        for (size_t row = 0; row < count; ++row)
            for (uint32_t j = 0; j < shape.m; ++j) {
                const float* residual = residuals.data() + row * shape.dims;
                uint8_t best = 0;
                for (uint32_t c = 1; c < codewords; ++c)
                    if (piece_error(quantizer, j, residual, static_cast<uint8_t>(c)) <
                        piece_error(quantizer, j, residual, best))
                        best = static_cast<uint8_t>(c);
                ASSERT_EQ(found.codes[row * shape.m + j], best) << shape;
            }
    }
}

// An insert takes the codebook row by row and must come to what the build came to, up to ties.
TEST_P(ProductQuantizer, PieceEncoderAgreesWithTheBatch) {
    for (int i = 0; i < 10; ++i) {
        const RandomModel model(random, random_shape(random));
        const Quantizer quantizer = model.quantizer();
        const QuantizerShape& shape = quantizer.shape;
        const size_t count = 20;
        const std::vector<float> rows = normal_floats(random, count * shape.dims);
        const Encoded batch = encoded(quantizer, rows);
        size_t same = 0;
        PieceEncoder encoder;  // finish() makes it ready for the next piece
        for (size_t row = 0; row < count; ++row) {
            const float* centroid = quantizer.centroids + size_t{batch.lists[row]} * shape.dims;
            std::vector<float> residual(shape.dims);
            for (uint32_t d = 0; d < shape.dims; ++d)
                residual[d] = rows[row * shape.dims + d] - centroid[d];
            std::vector<uint8_t> code(shape.m);
            double offset = 0;
            for (uint32_t j = 0; j < shape.m; ++j) {
                for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d)
                    encoder.add(residual[d], centroid[d],
                                quantizer.codebook + size_t{d} * codewords);
                const PieceEncoder::Result result = encoder.finish();
                code[j] = result.code;
                offset += result.offset;
                expect_nearest_codeword(quantizer, j, residual.data(), result.code);
                same += result.code == batch.codes[row * shape.m + j];
            }
            if (shape.metric == Metric::inner_product) continue;
            const Offset expected = reference_offset(quantizer, batch.lists[row], code.data());
            ASSERT_NEAR(offset, expected.value, expected.magnitude * 1e-5);
        }
        EXPECT_GE(same, count * shape.m * 99 / 100) << shape;
    }
}

// Rows in sixteen bits are the rows they stand for.
TEST_P(ProductQuantizer, PieceEncoderTakesHalfRows) {
    for (const uint32_t dims : {1, 3, 8}) {
        const std::vector<float> residual = normal_floats(random, dims);
        const std::vector<float> centroid = normal_floats(random, dims);
        PieceEncoder encoder, half_encoder;
        for (uint32_t d = 0; d < dims; ++d) {
            Guarded<bfloat16> half(codewords);
            std::vector<float> row = normal_floats(random, codewords);
            for (uint32_t c = 0; c < codewords; ++c) {
                half[c] = to_bfloat16(row[c]);
                row[c] = to_float(half[c]);
            }
            encoder.add(residual[d], centroid[d], row.data());
            half_encoder.add(residual[d], centroid[d], half.data());
        }
        const PieceEncoder::Result expected = encoder.finish(), found = half_encoder.finish();
        EXPECT_EQ(found.code, expected.code);
        EXPECT_EQ(found.offset, expected.offset);
    }
}

TEST_P(ProductQuantizer, CodesStayInRangeOfOverflow) {
    const RandomModel model(random, {16, 1, 4, Metric::l2});
    for (const float huge : {1e20f, 3e38f}) {
        std::vector<float> rows(16 * 9);
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = i % 3 ? huge : -huge;
        encoded(model.quantizer(), rows);  // any code will do, without a crash
    }
}

TEST_P(ProductQuantizer, SubtractCentroids) {
    std::vector<float> rows = {1, 2, 3, 4, 5, 6};
    const std::vector<float> centroids = {1, 1, 10, 20};
    const std::vector<uint32_t> nearest = {1, 0, 1};
    subtract_centroids(rows.data(), 3, 2, centroids.data(), nearest.data());
    EXPECT_EQ(rows, (std::vector<float>{-9, -18, 2, 3, -5, -14}));
}

// --- training

struct Training {
    QuantizerShape shape;
    size_t count;
    std::vector<float> residuals;  // (count)(dims)
    std::vector<float> codebook;   // (dims)(256)

    Training(QuantizerShape of, std::vector<float> rows)
        : shape(of),
          count(rows.size() / of.dims),
          residuals(std::move(rows)),
          codebook(size_t{of.dims} * codewords) {}
    void start(uint64_t seed) {
        codebook_start(shape, residuals.data(), count, seed, codebook.data());
    }
    double step(Workers& workers) {
        return codebook_step(workers, shape, residuals.data(), count, codebook.data());
    }
    // The mean squared error in float64.
    double error() const {
        const std::vector<float> origin(shape.dims);
        const Quantizer quantizer{shape, origin.data(), codebook.data()};
        double sum = 0;
        for (size_t row = 0; row < count; ++row)
            for (uint32_t j = 0; j < shape.m; ++j) {
                double least = std::numeric_limits<double>::infinity();
                for (uint32_t c = 0; c < codewords; ++c)
                    least = std::min(least,
                                     piece_error(quantizer, j, residuals.data() + row * shape.dims,
                                                 static_cast<uint8_t>(c)));
                sum += least;
            }
        return sum / static_cast<double>(count);
    }
};

TEST_P(ProductQuantizer, StartIsDrawnFromTheResiduals) {
    Training t({6, 1, 3, Metric::l2}, normal_floats(random, 6 * 1000));
    t.start(3);
    std::set<size_t> drawn;
    for (uint32_t c = 0; c < codewords; ++c)
        for (size_t row = 0; row < t.count; ++row) {
            bool equal = true;
            for (uint32_t d = 0; d < 6; ++d)
                equal &= t.codebook[size_t{d} * codewords + c] == t.residuals[row * 6 + d];
            if (equal) drawn.insert(row);
        }
    EXPECT_EQ(drawn.size(), codewords);
    const std::vector<float> first = t.codebook;
    t.start(3);
    EXPECT_EQ(t.codebook, first);
    t.start(4);
    EXPECT_NE(t.codebook, first);
}

TEST_P(ProductQuantizer, StepsLowerTheErrorTheyReturn) {
    Workers workers(2);
    for (int i = 0; i < 4; ++i) {
        const QuantizerShape shape = random_shape(random, 40);
        Training t(shape, clustered_rows(random, between(random, 300, 900), shape.dims, 20));
        t.start(i);
        double last = std::numeric_limits<double>::infinity();
        for (int step = 0; step < 5; ++step) {
            const double before = t.error();
            const double returned = t.step(workers);
            EXPECT_NEAR(returned, before, before * 1e-4 + 1e-9) << shape;
            EXPECT_LE(returned, last * (1 + 1e-5)) << shape << ", step " << step;
            last = returned;
        }
    }
}

TEST_P(ProductQuantizer, AsManyResidualsAsCodewordsAreReproduced) {
    Workers workers(2);
    for (const size_t count : {1, 2, 100, 255, 256}) {
        Training t({10, 1, 5, Metric::l2}, normal_floats(random, 10 * count));
        t.start(1);
        for (int step = 0; step < 3; ++step) t.step(workers);
        EXPECT_NEAR(t.error(), 0, 1e-9) << count;
    }
}

TEST_P(ProductQuantizer, ConstantResiduals) {
    Workers workers(2);
    for (const float value : {0.0f, 2.0f, -1e-3f}) {
        Training t({9, 1, 4, Metric::l2}, std::vector<float>(9 * 400, value));
        t.start(1);
        for (int step = 0; step < 4; ++step) EXPECT_NEAR(t.step(workers), 0, 1e-4);
        EXPECT_NEAR(t.error(), 0, 1e-4);
        for (const float element : t.codebook) ASSERT_TRUE(std::isfinite(element));
    }
}

// Pictures have corners where nearly every residual is the same. One codeword is enough for those;
// the start draws most of them from there, and training has to bring them to the others.
TEST_P(ProductQuantizer, ACrowdOfEqualResidualsDoesNotUseUpTheCodewords) {
    Workers workers(2);
    const size_t count = 8000, dims = 4;
    std::vector<float> rows(count * dims);
    for (size_t i = 0; i < count; i += 20) {
        const std::vector<float> other = normal_floats(random, dims);
        std::copy(other.begin(), other.end(), rows.begin() + i * dims);
    }
    Training t({dims, 1, 1, Metric::l2}, std::move(rows));
    t.start(1);
    for (int step = 0; step < 10; ++step) t.step(workers);
    // 400 residuals that differ, 255 codewords for them; with a dozen the error would be near 2.
    EXPECT_LT(t.error() * 20, 0.15);
}

TEST_P(ProductQuantizer, ThreadsDoNotChangeTheCodebook) {
    const QuantizerShape shape = random_shape(random, 80);
    const std::vector<float> rows = clustered_rows(random, 700, shape.dims, 9);
    std::vector<std::vector<float>> codebooks;
    std::vector<double> errors;
    for (const int threads : {1, 3, 4}) {
        Workers workers(threads);
        Training t(shape, rows);
        t.start(1);
        double error = 0;
        for (int step = 0; step < 3; ++step) error = t.step(workers);
        codebooks.push_back(t.codebook);
        errors.push_back(error);
    }
    EXPECT_EQ(codebooks[1], codebooks[0]) << shape;
    EXPECT_EQ(codebooks[2], codebooks[0]) << shape;
    EXPECT_EQ(errors[1], errors[0]) << shape;
    EXPECT_EQ(errors[2], errors[0]) << shape;
}

TEST_P(ProductQuantizer, AnInterruptedStepLeavesTheCodebook) {
    volatile std::sig_atomic_t interrupt = 1;
    Workers workers(2, &interrupt);
    Training t({20, 1, 5, Metric::l2}, normal_floats(random, 20 * 500));
    t.start(1);
    const std::vector<float> before = t.codebook;
    EXPECT_THROW(t.step(workers), Interrupted);
    EXPECT_EQ(t.codebook, before);
}

PGWARP_EVERY_TARGET(ProductQuantizer);

}  // namespace
}  // namespace pgwarp
