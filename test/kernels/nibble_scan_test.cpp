// Codes of four bits: their codebooks and encoding, and the scan that discards by bounds.

#include "kernels/nibble_scan.h"

#include "kernels/product_quantizer.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/guarded.h"
#include "test/kernels/reference.h"

namespace pgwarp {
namespace {

class NibbleTest : public EveryTarget {
  protected:
    void SetUp() override {
        EveryTarget::SetUp();
        choose_nibble_target();
    }
    void TearDown() override {
        EveryTarget::TearDown();
        choose_nibble_target();
    }
};

QuantizerShape random_shape(std::mt19937& random) {
    const auto dims = static_cast<uint32_t>(between(random, 2, 150));
    const auto m = static_cast<uint32_t>(between(random, 1, dims / 2));
    const Metric metrics[] = {Metric::l2, Metric::inner_product, Metric::cosine};
    return {dims, static_cast<uint32_t>(between(random, 1, 10)), m, metrics[between(random, 0, 2)],
            4};
}

TEST_P(NibbleTest, PairsOfWordsAreTheCodebook) {
    for (int round = 0; round < 20; ++round) {
        const QuantizerShape shape = random_shape(random);
        ASSERT_EQ(shape.parts(), 2 * shape.m);
        for (uint32_t j = 0; j <= shape.m; ++j)
            ASSERT_EQ(shape.part_begin(2 * j), shape.piece_begin(j));
        for (uint32_t p = 0; p < shape.parts(); ++p)
            ASSERT_LT(shape.part_begin(p), shape.part_begin(p + 1));
        const std::vector<float> words = normal_floats(random, size_t{shape.dims} * nibble_words);
        std::vector<float> codebook(size_t{shape.dims} * codewords), back(words.size());
        pair_nibble_words(shape, words.data(), codebook.data());
        nibble_words_of(shape, codebook.data(), back.data());
        EXPECT_EQ(back, words);
        for (uint32_t p = 0; p < shape.parts(); ++p)
            for (uint32_t d = shape.part_begin(p); d < shape.part_begin(p + 1); ++d) {
                const auto c = static_cast<uint32_t>(between(random, 0, 255));
                EXPECT_EQ(codebook[size_t{d} * codewords + c],
                          words[size_t{d} * nibble_words + (p % 2 ? c / 16 : c % 16)]);
            }
    }
}

// The nearest of all 256 pairs is found half by half, in a batch and alone.
TEST_P(NibbleTest, EncodesToTheNearest) {
    for (int round = 0; round < 20; ++round) {
        const QuantizerShape shape = random_shape(random);
        const size_t count = between(random, 1, 300);
        const std::vector<float> centroids =
            normal_floats(random, size_t{shape.lists} * shape.dims, 3);
        const std::vector<float> words = normal_floats(random, size_t{shape.dims} * nibble_words);
        const std::vector<float> rows = normal_floats(random, count * shape.dims, 3);
        std::vector<float> codebook(size_t{shape.dims} * codewords);
        pair_nibble_words(shape, words.data(), codebook.data());
        const Quantizer quantizer{shape, centroids.data(), codebook.data()};
        std::vector<uint32_t> lists(count);
        std::vector<uint8_t> codes(count * shape.m), alone(shape.m);
        std::vector<float> offsets(count);
        Workers workers(2);
        encode(workers, quantizer,
               {rows.data(), count, lists.data(), codes.data(), offsets.data()});
        for (size_t i = 0; i < count; ++i) {
            const float* centroid = centroids.data() + size_t{lists[i]} * shape.dims;
            std::vector<float> residual(shape.dims);
            for (uint32_t d = 0; d < shape.dims; ++d)
                residual[d] = rows[i * shape.dims + d] - centroid[d];
            double offset = 0;
            for (uint32_t j = 0; j < shape.m; ++j) {
                const uint8_t code = codes[i * shape.m + j];
                const auto error = [&](uint32_t c) {
                    double sum = 0;
                    for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d)
                        sum +=
                            std::pow(double{residual[d]} - codebook[size_t{d} * codewords + c], 2);
                    return sum;
                };
                double least = INFINITY;
                for (uint32_t c = 0; c < codewords; ++c) least = std::min(least, error(c));
                ASSERT_LE(error(code), least + 1e-3);
                for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d) {
                    const double w = codebook[size_t{d} * codewords + code];
                    offset += w * (w + 2.0 * centroid[d]);
                }
            }
            if (shape.metric == Metric::inner_product) offset = 0;
            ASSERT_NEAR(offsets[i], offset, 1e-3 * (1 + std::fabs(offset)));
            const float alone_offset =
                encode_nibbles(shape, words.data(), residual.data(), centroid, alone.data());
            ASSERT_TRUE(std::equal(alone.begin(), alone.end(), codes.begin() + i * shape.m));
            if (shape.metric != Metric::inner_product) {
                ASSERT_NEAR(alone_offset, offset, 1e-3 * (1 + std::fabs(offset)));
            }
        }
    }
}

TEST_P(NibbleTest, TrainingLowersTheError) {
    const QuantizerShape shape{19, 1, 6, Metric::l2, 4};
    const size_t count = 2000;
    const std::vector<float> rows = clustered_rows(random, count, shape.dims, 30);
    std::vector<float> codebook(size_t{shape.dims} * codewords);
    std::vector<uint8_t> codes(count * shape.m);
    Workers workers(2);
    codebook_start(shape, rows.data(), count, 7, codebook.data());
    double first = 0, last = 0;
    for (int i = 0; i < 10; ++i) {
        const std::vector<float> before = codebook;
        last = codebook_step(workers, shape, rows.data(), count, codebook.data(), codes.data());
        if (i == 0) first = last;
        double error = 0;
        for (size_t r = 0; r < count; ++r)
            for (uint32_t j = 0; j < shape.m; ++j)
                for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d)
                    error += std::pow(double{rows[r * shape.dims + d]} -
                                          before[size_t{d} * codewords + codes[r * shape.m + j]],
                                      2);
        ASSERT_NEAR(error / count, last, 1e-3 * last);
        std::vector<float> words(size_t{shape.dims} * nibble_words), again(codebook.size());
        nibble_words_of(shape, codebook.data(), words.data());
        pair_nibble_words(shape, words.data(), again.data());
        ASSERT_EQ(again, codebook) << "all pairs";
    }
    EXPECT_LT(last, 0.7 * first);
    // One thread or two: the same.
    std::vector<float> a = codebook, b = codebook;
    Workers one(1);
    EXPECT_EQ(codebook_step(one, shape, rows.data(), count, a.data()),
              codebook_step(workers, shape, rows.data(), count, b.data()));
    EXPECT_EQ(a, b);
}

struct Scanned {
    uint32_t m, count, stride;
    std::vector<uint8_t> codes;
    std::vector<float> offsets, exact;
    float list_term;

    double distance(uint32_t l) const {
        double sum = double{list_term} + offsets[l];
        for (uint32_t j = 0; j < m; ++j) {
            const uint8_t code = codes[size_t{j} * stride + l];
            sum += exact[size_t{2 * j} * 16 + code % 16];
            sum += exact[size_t{2 * j + 1} * 16 + code / 16];
        }
        return sum;
    }
    double magnitude(uint32_t l) const {
        double sum = std::fabs(list_term) + std::fabs(offsets[l]);
        for (uint32_t j = 0; j < 2 * m; ++j) {
            double most = 0;
            for (uint32_t c = 0; c < 16; ++c)
                most = std::max(most, std::fabs(double{exact[size_t{j} * 16 + c]}));
            sum += most;
        }
        return sum;
    }
};

Scanned random_list(std::mt19937& random, uint32_t most_m) {
    Scanned s;
    s.m = static_cast<uint32_t>(between(random, 1, most_m));
    s.count = static_cast<uint32_t>(between(random, 1, 700));
    s.stride = s.count + static_cast<uint32_t>(between(random, 0, 20));
    s.codes.resize(size_t{s.m} * s.stride + 15);
    for (uint8_t& code : s.codes) code = static_cast<uint8_t>(random());
    s.offsets = normal_floats(random, s.count, 5);
    s.exact = normal_floats(random, size_t{s.m} * 32, between(random, 0, 1) ? 1 : 100);
    if (between(random, 0, 3) == 0)
        for (float& value : s.exact) value += 1000;
    s.list_term = normal_floats(random, 1, 50)[0];
    return s;
}

// Every entry within the bound is found, with its distance; the others are few where the bound is
// tight.
TEST_P(NibbleTest, FindsAllWithinTheBound) {
    size_t beyond = 0, all = 0;
    for (int round = 0; round < 150; ++round) {
        const Scanned s = random_list(random, round % 10 ? 60 : 400);
        std::vector<uint8_t> low(s.exact.size());
        const NibbleTable table = make_nibble_table(s.exact.data(), s.m, low.data());
        // What comes next may be anything, even nothing that can be read.
        const uint8_t* next = round % 2 ? nullptr : reinterpret_cast<const uint8_t*>(uintptr_t{64});
        const CodeColumns columns{s.codes.data(), s.stride, s.count, s.offsets.data(), next};
        std::vector<double> distances;
        for (uint32_t l = 0; l < s.count; ++l) distances.push_back(s.distance(l));
        std::vector<double> sorted = distances;
        std::sort(sorted.begin(), sorted.end());
        // Bounds that are distances of entries, as in a selection: rounding may fall either way.
        const double bounds[] = {sorted[between(random, 0, s.count - 1)],
                                 static_cast<float>(sorted[s.count / 20]),
                                 sorted.front() - 1,
                                 sorted.back() + 1,
                                 std::numeric_limits<double>::infinity(),
                                 std::nan("")};
        for (const double bound : bounds) {
            std::vector<NibbleHit> hits(s.count);
            const uint32_t found = scan_nibbles(table, columns, s.list_term, bound, hits.data());
            std::vector<bool> is_hit(s.count);
            for (uint32_t i = 0; i < found; ++i) {
                ASSERT_LT(hits[i].entry, s.count);
                if (i > 0) {
                    ASSERT_LT(hits[i - 1].entry, hits[i].entry);
                }
                is_hit[hits[i].entry] = true;
                ASSERT_NEAR(hits[i].distance, distances[hits[i].entry],
                            s.magnitude(hits[i].entry) * (2 * s.m + 2) * 0x1p-24);
            }
            for (uint32_t l = 0; l < s.count; ++l) {
                // The distance as a scan of all entries would have it.
                std::vector<NibbleHit> alone(s.count);
                if (!is_hit[l]) {
                    const double slack = s.magnitude(l) * (2 * s.m + 2) * 0x1p-24;
                    ASSERT_GT(distances[l] + slack, bound) << "entry " << l;
                }
            }
            if (bound == static_cast<float>(sorted[s.count / 20]) && s.m <= 60) {
                all += s.count;
                for (uint32_t i = 0; i < found; ++i) beyond += hits[i].distance > bound;
            }
        }
    }
    EXPECT_LT(static_cast<double>(beyond), 0.2 * static_cast<double>(all));
}

// The float distances decide, not what they stand for: an entry at the bound itself is found.
TEST_P(NibbleTest, KeepsWhatIsAtTheBound) {
    for (int round = 0; round < 100; ++round) {
        const Scanned s = random_list(random, 60);
        std::vector<uint8_t> low(s.exact.size());
        const NibbleTable table = make_nibble_table(s.exact.data(), s.m, low.data());
        const CodeColumns columns{s.codes.data(), s.stride, s.count, s.offsets.data()};
        std::vector<NibbleHit> all(s.count), hits(s.count);
        ASSERT_EQ(scan_nibbles(table, columns, s.list_term, INFINITY, all.data()), s.count);
        const float bound = all[between(random, 0, s.count - 1)].distance;
        const uint32_t found = scan_nibbles(table, columns, s.list_term, bound, hits.data());
        std::vector<NibbleHit> within;
        for (const NibbleHit& hit : all)
            if (hit.distance <= bound) within.push_back(hit);
        std::vector<NibbleHit> found_within;
        for (uint32_t i = 0; i < found; ++i)
            if (hits[i].distance <= bound) found_within.push_back(hits[i]);
        ASSERT_EQ(found_within.size(), within.size());
        for (size_t i = 0; i < within.size(); ++i) {
            ASSERT_EQ(found_within[i].entry, within[i].entry);
            ASSERT_EQ(found_within[i].distance, within[i].distance);
        }
    }
}

TEST_P(NibbleTest, TablesOfWholeBytesSayTheSame) {
    const Scanned s = random_list(random, 60);
    std::vector<float> table(size_t{s.m} * codewords), distances(s.count + 8);
    pair_nibble_table(s.exact.data(), s.m, table.data());
    std::vector<uint8_t> codes = s.codes;
    codes.resize(codes.size() + 8);
    scan_codes(table.data(), s.m, {codes.data(), s.stride, s.count, s.offsets.data()}, s.list_term,
               distances.data());
    for (uint32_t l = 0; l < s.count; ++l)
        EXPECT_NEAR(distances[l], s.distance(l), s.magnitude(l) * (2 * s.m + 2) * 0x1p-24);
}

// Sums that overflow, tables that are flat, offsets that are not numbers: nothing is lost.
TEST_P(NibbleTest, LosesNothingBeyondTheRangeOfFloats) {
    for (const float value : {0.0f, 1e-40f, 1e38f, 3e38f, INFINITY, std::nanf("")}) {
        Scanned s = random_list(random, 20);
        for (float& entry : s.exact)
            if (between(random, 0, 4) == 0 || value == 0) entry = value;
        for (float& offset : s.offsets)
            if (between(random, 0, 4) == 0) offset = value;
        std::vector<uint8_t> low(s.exact.size());
        const NibbleTable table = make_nibble_table(s.exact.data(), s.m, low.data());
        const CodeColumns columns{s.codes.data(), s.stride, s.count, s.offsets.data()};
        std::vector<NibbleHit> all(s.count), hits(s.count);
        ASSERT_EQ(scan_nibbles(table, columns, s.list_term, INFINITY, all.data()), s.count);
        for (const double bound : {0.0, -100.0, 100.0, 1e38, -1e38}) {
            const uint32_t found = scan_nibbles(table, columns, s.list_term, bound, hits.data());
            uint32_t next = 0;
            for (const NibbleHit& hit : all) {
                while (next < found && hits[next].entry < hit.entry) ++next;
                if (!(hit.distance > bound)) {
                    ASSERT_TRUE(next < found && hits[next].entry == hit.entry)
                        << value << " " << bound << " " << hit.distance;
                }
            }
        }
    }
}

// Distances of the rounded tables: near the exact ones, the same wherever an entry lies and
// whatever the bound is, and none within the bound is missing.
TEST_P(NibbleTest, RoundedDistancesAreNear) {
    for (int round = 0; round < 30; ++round) {
        const auto m = static_cast<uint32_t>(between(random, 1, 200));
        const auto count = static_cast<uint32_t>(between(random, 1, 400));
        const uint32_t stride = (count + 15) / 16 * 16;
        std::vector<float> exact = normal_floats(random, size_t{2} * m * nibble_words, 3);
        std::vector<float> offsets = normal_floats(random, count + 16, 5);
        std::vector<uint8_t> low(exact.size()), codes(size_t{m} * stride + 16);
        for (uint8_t& code : codes) code = static_cast<uint8_t>(between(random, 0, 255));
        const NibbleTable table = make_nibble_table(exact.data(), m, low.data());
        const CodeColumns columns{codes.data(), stride, count, offsets.data()};
        const float list_term = 7.5f;
        std::vector<NibbleHit> hits(count), some(count);
        ASSERT_EQ(scan_rounded_nibbles(table, columns, list_term, INFINITY, hits.data()), count);
        for (uint32_t l = 0; l < count; ++l) {
            double sum = list_term + double{offsets[l]};
            for (uint32_t j = 0; j < m; ++j) {
                const uint8_t code = codes[size_t{j} * stride + l];
                sum += exact[size_t{2} * j * nibble_words + code % 16];
                sum += exact[(size_t{2} * j + 1) * nibble_words + code / 16];
            }
            ASSERT_EQ(hits[l].entry, l);
            EXPECT_NEAR(hits[l].distance, sum, m * table.step + 1e-5 * table.magnitude);
        }
        const float bound = hits[between(random, 0, count - 1)].distance;
        const auto first = static_cast<uint32_t>(between(random, 0, count - 1));
        const CodeColumns rest{codes.data() + first, stride, count - first, offsets.data() + first};
        const uint32_t found = scan_rounded_nibbles(table, rest, list_term, bound, some.data());
        uint32_t at = 0;
        for (uint32_t l = first; l < count; ++l) {
            if (hits[l].distance > bound) continue;
            ASSERT_LT(at, found);
            EXPECT_EQ(some[at].entry, l - first);
            EXPECT_EQ(some[at++].distance, hits[l].distance);
        }
        EXPECT_EQ(at, found);
    }
}

PGWARP_EVERY_TARGET(NibbleTest);

}  // namespace
}  // namespace pgwarp
