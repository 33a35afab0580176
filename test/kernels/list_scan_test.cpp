// Tables and list scans against float64, in memory that ends where it must.

#include "kernels/list_scan.h"

#include "kernels/product_quantizer.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/guarded.h"
#include "test/kernels/reference.h"

namespace pgwarp {
namespace {

constexpr Metric metrics[] = {Metric::l2, Metric::inner_product, Metric::cosine};

// A list of random entries as a page holds them: columns of codes that may be wider than the
// entries are many, and behind the last row no more than the header asks for.
struct Entries {
    uint32_t m;
    uint32_t stride;
    uint32_t count;
    Guarded<uint8_t> codes;
    Guarded<float> offsets;

    Entries(std::mt19937& random, uint32_t m_, uint32_t stride_, uint32_t count_)
        : m(m_),
          stride(stride_),
          count(count_),
          codes(size_t{m - 1} * stride + count + 7),
          offsets(count) {
        for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
        const std::vector<float> values = normal_floats(random, count);
        std::copy(values.begin(), values.end(), offsets.begin());
    }
    CodeColumns columns() { return {codes.data(), stride, count, offsets.data()}; }
    uint8_t& code(uint32_t entry, uint32_t j) { return codes[size_t{j} * stride + entry]; }
};

// In the order the header promises, in float32.
float plain_distance(const float* table, Entries& entries, uint32_t l, float list_term) {
    float sum = list_term + entries.offsets[l];
    for (uint32_t j = 0; j < entries.m; ++j)
        sum += table[size_t{j} * codewords + entries.code(l, j)];
    return sum;
}

uint32_t bits(float value) {
    return std::bit_cast<uint32_t>(value);
}

class ListScan : public EveryTarget {
  protected:
    // Exactly the table, with nothing readable behind it.
    void fill_table(Guarded<float>& table) {
        const std::vector<float> values = normal_floats(random, table.size());
        std::copy(values.begin(), values.end(), table.begin());
    }
    void check_scan(uint32_t m, uint32_t stride, uint32_t count) {
        SCOPED_TRACE(testing::Message()
                     << "m " << m << ", stride " << stride << ", " << count << " entries");
        Guarded<float> table(size_t{m} * codewords);
        fill_table(table);
        Entries entries(random, m, stride, count);
        Guarded<float> distances((count + 7) / 8 * 8);
        const float list_term = 3.25f;
        scan_codes(table.data(), m, entries.columns(), list_term, distances.data());
        for (uint32_t l = 0; l < count; ++l) {
            double sum = double{list_term} + entries.offsets[l], magnitude = std::fabs(sum);
            for (uint32_t j = 0; j < m; ++j) {
                const double part = table[size_t{j} * codewords + entries.code(l, j)];
                sum += part;
                magnitude += std::fabs(part);
            }
            ASSERT_NEAR(distances[l], sum, magnitude * m * 0x1p-24 + 1e-6) << "entry " << l;
            ASSERT_EQ(bits(distances[l]), bits(plain_distance(table.data(), entries, l, list_term)))
                << "entry " << l;
            ASSERT_EQ(bits(distances[l]),
                      bits(code_distance(table.data(), m, entries.columns(), list_term, l)))
                << "entry " << l;
        }
    }
};

TEST_P(ListScan, TableAgreesWithFloat64) {
    for (int i = 0; i < 20; ++i) {
        const auto dims = static_cast<uint32_t>(between(random, 1, 300));
        const RandomModel model(
            random, {dims, 1, static_cast<uint32_t>(between(random, 1, dims)), metrics[i % 3]});
        const QuantizerShape& shape = model.shape;
        const std::vector<float> query = normal_floats(random, dims);
        Guarded<float> table(size_t{shape.m} * codewords);
        build_table(model.quantizer(), query.data(), table.data());
        const double factor = shape.metric == Metric::inner_product ? -1 : -2;
        for (uint32_t j = 0; j < shape.m; ++j)
            for (uint32_t c = 0; c < codewords; ++c) {
                double sum = 0, magnitude = 0;
                for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d) {
                    const double part = factor * query[d] *
                                        codeword_at(model.quantizer(), d, static_cast<uint8_t>(c));
                    sum += part;
                    magnitude += std::fabs(part);
                }
                ASSERT_NEAR(table[size_t{j} * codewords + c], sum, magnitude * 1e-5)
                    << dims << " dims, " << shape.m << " pieces";
            }
    }
}

// As an index does, whose codebook lies on pages: some rows at a time, the same table to the last
// bit.
TEST_P(ListScan, TableSomeRowsAtATimeIsTheSame) {
    const uint32_t dims = 50, m = 7;
    const RandomModel model(random, {dims, 1, m, Metric::l2});
    const std::vector<float> query = normal_floats(random, dims);
    std::vector<float> whole(size_t{m} * codewords), by_rows(size_t{m} * codewords);
    build_table(model.quantizer(), query.data(), whole.data());
    for (uint32_t j = 0; j < m; ++j) {
        const uint32_t end = model.shape.piece_begin(j + 1);
        for (uint32_t d = model.shape.piece_begin(j); d < end;) {
            const auto count = static_cast<uint32_t>(between(random, 1, end - d));
            std::vector<float> factors(count);
            for (uint32_t r = 0; r < count; ++r)
                factors[r] = product_factor(Metric::l2) * query[d + r];
            Guarded<float> rows(size_t{count} * codewords);
            std::memcpy(rows.data(), model.codebook.data() + size_t{d} * codewords,
                        size_t{count} * codewords * sizeof(float));
            add_codebook_rows(factors.data(), rows.data(), count,
                              by_rows.data() + size_t{j} * codewords);
            d += count;
        }
    }
    EXPECT_EQ(by_rows, whole);
}

// Rows in sixteen bits are the rows they stand for.
TEST_P(ListScan, TableOfHalfRowsIsTheSame) {
    for (const uint32_t count : {1, 2, 3, 9}) {
        Guarded<float> rows(size_t{count} * codewords);
        Guarded<bfloat16> half(size_t{count} * codewords);
        fill_table(rows);
        for (size_t i = 0; i < rows.size(); ++i) {
            half[i] = to_bfloat16(rows[i]);
            rows[i] = to_float(half[i]);
        }
        const std::vector<float> factors = normal_floats(random, count);
        std::vector<float> table = normal_floats(random, codewords), half_table = table;
        add_codebook_rows(factors.data(), rows.data(), count, table.data());
        add_codebook_rows(factors.data(), half.data(), count, half_table.data());
        EXPECT_EQ(half_table, table);
    }
}

TEST_P(ListScan, AnyNumberOfEntries) {
    for (uint32_t count = 0; count <= 80; ++count) check_scan(5, count, count);
    for (const uint32_t count : {127, 128, 129, 136, 255, 313, 511, 640, 699, 700})
        for (const uint32_t wider : {0, 1, 8, 13}) check_scan(3, count + wider, count);
}

TEST_P(ListScan, AnyNumberOfPieces) {
    for (uint32_t m = 1; m <= 70; ++m) check_scan(m, 27, 21);
    for (const uint32_t m : {95, 96, 97, 98, 127, 191, 192, 193, 196, 255, 256, 257, 299, 300})
        for (const uint32_t count : {1, 8, 31, 40}) check_scan(m, count + count % 3, count);
}

TEST_P(ListScan, RandomShapes) {
    for (int i = 0; i < 60; ++i) {
        const auto count = static_cast<uint32_t>(between(random, 1, 700));
        const auto stride = count + static_cast<uint32_t>(between(random, 0, 40));
        check_scan(static_cast<uint32_t>(between(random, 1, 300)), stride, count);
    }
}

// Going on in rounds relies on it: an entry that moved to another place is the same candidate.
TEST_P(ListScan, AnEntryHasTheSameDistanceWhereverItLies) {
    for (const uint32_t m : {1, 7, 25, 50, 98, 131, 196, 300}) {
        Guarded<float> table(size_t{m} * codewords);
        fill_table(table);
        std::vector<uint8_t> code(m);
        for (uint8_t& byte : code) byte = static_cast<uint8_t>(random());
        uint32_t expected = 0;
        for (int place = 0; place < 40; ++place) {
            const auto count = static_cast<uint32_t>(between(random, 1, 200));
            Entries entries(random, m, count + static_cast<uint32_t>(between(random, 0, 9)), count);
            const auto at = static_cast<uint32_t>(between(random, 0, count - 1));
            for (uint32_t j = 0; j < m; ++j) entries.code(at, j) = code[j];
            entries.offsets[at] = 0.7f;
            std::vector<float> distances((count + 7) / 8 * 8);
            scan_codes(table.data(), m, entries.columns(), -1.3f, distances.data());
            if (place == 0) expected = bits(distances[at]);
            ASSERT_EQ(bits(distances[at]), expected) << "m " << m << ", place " << at;
        }
    }
}

// What lies behind the entries, in a page that is not full, must not be heeded.
TEST_P(ListScan, NothingBehindTheEntriesMatters) {
    const uint32_t m = 9, capacity = 64, count = 37;
    Guarded<float> table(size_t{m} * codewords);
    fill_table(table);
    Entries full(random, m, capacity, capacity);
    std::vector<float> all(capacity), some(40);
    scan_codes(table.data(), m, full.columns(), 0, all.data());
    for (uint32_t j = 0; j < m; ++j)
        for (uint32_t l = count; l < capacity; ++l) full.code(l, j) ^= 0x5a;
    scan_codes(table.data(), m, {full.codes.data(), capacity, count, full.offsets.data()}, 0,
               some.data());
    for (uint32_t l = 0; l < count; ++l) EXPECT_EQ(bits(some[l]), bits(all[l]));
}

TEST_P(ListScan, OverflowIsInfinityAndStaysWithItsEntry) {
    const uint32_t m = 20, count = 30;
    Guarded<float> table(size_t{m} * codewords);
    for (float& value : table) value = 1;
    for (uint32_t j = 0; j < m; ++j) table[size_t{j} * codewords] = 3e38f;
    Entries entries(random, m, count, count);
    for (uint8_t& code : entries.codes) code |= 1;
    for (uint32_t j = 0; j < m; ++j) entries.code(11, j) = 0;
    std::vector<float> distances(32);
    scan_codes(table.data(), m, entries.columns(), 0, distances.data());
    for (uint32_t l = 0; l < count; ++l) EXPECT_EQ(std::isinf(distances[l]), l == 11) << l;
}

// The whole chain: encode, build the table, scan. What comes out is the distance to the decoded
// vector.
TEST_P(ListScan, PartsAddUpToTheDistanceOfTheDecodedVector) {
    for (int i = 0; i < 12; ++i) {
        const auto dims = static_cast<uint32_t>(between(random, 1, 150));
        const RandomModel model(random,
                                {dims, static_cast<uint32_t>(between(random, 1, 9)),
                                 static_cast<uint32_t>(between(random, 1, dims)), metrics[i % 3]});
        const Quantizer quantizer = model.quantizer();
        const QuantizerShape& shape = quantizer.shape;
        const auto count = static_cast<uint32_t>(between(random, 1, 60));
        const std::vector<float> rows = normal_floats(random, size_t{count} * dims);
        const std::vector<float> query = normal_floats(random, dims);
        Workers workers(1);
        std::vector<uint32_t> lists(count);
        std::vector<uint8_t> codes(size_t{count} * shape.m);
        std::vector<float> offsets(count);
        encode(workers, quantizer,
               {rows.data(), count, lists.data(), codes.data(), offsets.data()});
        std::vector<float> table(size_t{shape.m} * codewords);
        build_table(quantizer, query.data(), table.data());

        for (uint32_t l = 0; l < count; ++l) {
            const float* centroid = quantizer.centroids + size_t{lists[l]} * dims;
            const std::vector<float> vector =
                decoded(quantizer, lists[l], codes.data() + size_t{l} * shape.m);
            const bool product = shape.metric == Metric::inner_product;
            const double list_term = product ? -reference_product(query.data(), centroid, dims)
                                             : reference_squared_l2(query.data(), centroid, dims);
            // One entry: its code is a column, with room behind its last byte.
            std::vector<uint8_t> column(codes.begin() + size_t{l} * shape.m,
                                        codes.begin() + size_t{l + 1} * shape.m);
            column.resize(shape.m + 7);
            float distances[8];
            scan_codes(table.data(), shape.m, {column.data(), 1, 1, offsets.data() + l},
                       static_cast<float>(list_term), distances);
            const double expected = product
                                        ? -reference_product(query.data(), vector.data(), dims)
                                        : reference_squared_l2(query.data(), vector.data(), dims);
            const double scale = reference_product(query.data(), query.data(), dims) +
                                 reference_product(vector.data(), vector.data(), dims) +
                                 reference_product(centroid, centroid, dims);
            ASSERT_NEAR(distances[0], expected, scale * 1e-5) << dims << " dims, " << shape.m;
        }
    }
}

PGWARP_EVERY_TARGET(ListScan);

}  // namespace
}  // namespace pgwarp
