// Compares a pass over rows in blocks with encoding and searching all of them at once on the CPU.
// Values are small integers, so that every sum is exact and does not depend on the block size.
#pragma once

#include "kernels/nibbles.h"
#include "kernels/row_pass.h"

#include <algorithm>
#include <limits>
#include <ostream>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace pgwarp {

struct PassCase {
    uint32_t dims = 40;
    uint32_t lists = 30;  // 0: nothing is encoded
    uint32_t m = 10;
    size_t rows = 5000;
    size_t queries = 20;  // 0: nothing is searched for
    uint32_t k = 10;
    size_t wide = 3;  // queries that find wide_k rows, too, where rows are encoded
    uint32_t wide_k = 120;
    size_t block_rows = 700;
    Metric metric = Metric::l2;
    bool report_nearest = false;
    uint32_t bits = 8;
    uint32_t rounds = 0;  // additive codes
    uint32_t kept = 0;    // dimensions that a rotation keeps, the last first; 0: no rotation
    RowElements elements = RowElements::float32;

    size_t wide_count() const { return lists > 0 ? std::min(wide, queries) : 0; }
    size_t found() const { return queries * k + wide_count() * wide_k; }
    uint32_t code_dims() const { return kept ? kept : dims; }
    QuantizerShape shape() const { return {code_dims(), lists, m, metric, bits, rounds}; }

    friend std::ostream& operator<<(std::ostream& out, const PassCase& c) {
        return out << c.rows << " x " << c.dims << " in blocks of " << c.block_rows << ", "
                   << c.lists << " lists, m " << c.m << ", " << c.queries << " queries, k " << c.k
                   << ", of " << c.wide_count() << " k " << c.wide_k << ", metric "
                   << static_cast<int>(c.metric) << ", report " << c.report_nearest << ", bits "
                   << c.bits << ", rounds " << c.rounds << ", kept " << c.kept
                   << (c.elements == RowElements::float16 ? ", halves" : "");
    }
};

struct PassData {
    std::vector<float> rows, queries, centroids, codebook, matrix;
    std::vector<uint64_t> ids;

    PassData(const PassCase& c, std::mt19937& random)
        : rows(c.rows * c.dims),
          queries(c.queries * c.dims),
          centroids(c.lists * c.code_dims()),
          codebook(c.lists ? size_t{c.shape().codebook_rows()} * codewords : 0),
          matrix(size_t{c.kept} * c.dims),
          ids(c.rows) {
        std::uniform_int_distribution<int> whole(-30, 30);
        for (auto* numbers : {&rows, &queries, &centroids, &codebook})
            for (float& x : *numbers) x = static_cast<float>(whole(random));
        for (uint32_t d = 0; d < c.kept; ++d) matrix[size_t{d} * c.dims + c.dims - 1 - d] = 1;
        if (c.bits == 4) {
            std::vector<float> words(size_t{c.code_dims()} * nibble_words);
            for (float& x : words) x = static_cast<float>(whole(random));
            pair_nibble_words(c.shape(), words.data(), codebook.data());
        }
        for (size_t i = 0; i < ids.size(); ++i)
            ids[i] = (uint64_t{i} * 7919 % c.rows) << 24 | (i & 255) | 1;
    }
    Quantizer quantizer(const PassCase& c) const {
        Quantizer quantizer{c.shape(), centroids.data(), codebook.data()};
        if (c.kept) quantizer.rotation = {c.dims, c.kept, matrix.data()};
        return quantizer;
    }
};

struct PassResults {
    std::vector<uint32_t> lists;
    std::vector<uint8_t> codes;
    std::vector<float> offsets;
    std::vector<Neighbor> nearest, reported;
};

inline RowPassInput pass_input(const PassCase& c, const PassData& data,
                               const Quantizer& quantizer) {
    RowPassInput input;
    if (c.lists > 0) input.quantizer = &quantizer;
    input.dims = c.dims;
    input.metric = c.metric;
    input.block_rows = c.block_rows;
    input.queries = data.queries.data();
    input.query_count = c.queries;
    input.k = c.k;
    input.wide_count = c.wide_count();
    input.wide_k = c.wide_k;
    input.report_nearest = c.report_nearest;
    input.elements = c.elements;
    return input;
}

inline PassResults run_pass(Executor& executor, const PassCase& c, const PassData& data) {
    const Quantizer quantizer = data.quantizer(c);
    const RowPassInput input = pass_input(c, data, quantizer);
    // Small integers are halves.
    std::vector<float16> halves(c.elements == RowElements::float16 ? data.rows.size() : 0);
    for (size_t i = 0; i < halves.size(); ++i) halves[i] = to_float16(data.rows[i]);
    const auto pass = executor.begin_pass(input);
    PassResults results;
    const auto finish = [&] {
        const PassedBlock block = pass->finish();
        if (c.lists > 0) {
            results.lists.insert(results.lists.end(), block.lists, block.lists + block.count);
            results.codes.insert(results.codes.end(), block.codes, block.codes + block.count * c.m);
            results.offsets.insert(results.offsets.end(), block.offsets,
                                   block.offsets + block.count);
        }
        if (c.report_nearest && c.queries > 0)
            results.reported.assign(block.nearest, block.nearest + c.found());
    };
    const size_t most_in_flight = executor.most_in_flight();
    size_t in_flight = 0, number = 0;
    for (size_t first = 0; first < c.rows; ++number) {
        // Full blocks, shorter ones, and empty ones.
        const size_t count = std::min(c.rows - first, number % 5 == 3   ? size_t{0}
                                                      : number % 3 == 1 ? c.block_rows / 3 + 1
                                                                        : c.block_rows);
        if (in_flight == most_in_flight) finish(), --in_flight;
        if (c.elements == RowElements::float16)
            pass->start(halves.data() + first * c.dims, data.ids.data() + first, count);
        else
            pass->start(data.rows.data() + first * c.dims, data.ids.data() + first, count);
        ++in_flight;
        first += count;
    }
    for (; in_flight > 0; --in_flight) finish();
    results.nearest.resize(c.found());
    pass->nearest(results.nearest.data());
    return results;
}

// Encodes all rows at once, rotated by hand; adds the squares that the rotation drops to the
// offsets.
inline void encode_all(Executor& executor, const PassCase& c, const PassData& data,
                       PassResults* results) {
    std::vector<float> rotated = data.rows;
    std::vector<float> dropped(c.rows);
    if (c.kept) {
        rotated.resize(c.rows * c.kept);
        for (size_t i = 0; i < c.rows; ++i)
            for (uint32_t d = 0; d < c.dims; ++d) {
                const float x = data.rows[i * c.dims + c.dims - 1 - d];
                if (d < c.kept)
                    rotated[i * c.kept + d] = x;
                else
                    dropped[i] += x * x;
            }
    }
    Quantizer quantizer = data.quantizer(c);
    quantizer.rotation = {};
    executor.encode(quantizer, {rotated.data(), c.rows, results->lists.data(),
                                results->codes.data(), results->offsets.data()});
    if (c.metric == Metric::inner_product) return;
    for (size_t i = 0; i < c.rows; ++i) results->offsets[i] += dropped[i];
}

inline PassResults expected_pass(const PassCase& c, const PassData& data) {
    const auto cpu = make_cpu_executor(2, {});
    PassResults results;
    if (c.lists > 0) {
        results.lists.resize(c.rows);
        results.codes.resize(c.rows * c.m);
        results.offsets.resize(c.rows);
        if (c.rows > 0) encode_all(*cpu, c, data, &results);
    }
    results.nearest.resize(c.found(), {std::numeric_limits<float>::infinity(), 0});
    const auto search = [&](size_t queries, uint32_t k, Neighbor* found) {
        if (queries > 0 && c.rows > 0)
            cpu->exact_search({data.queries.data(), queries, data.rows.data(), c.rows,
                               data.ids.data(), c.dims, c.metric, k, found});
    };
    search(c.queries, c.k, results.nearest.data());
    search(c.wide_count(), c.wide_k, results.nearest.data() + c.queries * c.k);
    return results;
}

inline void expect_same_neighbors(const PassCase& c, const std::vector<Neighbor>& found,
                                  const std::vector<Neighbor>& expected) {
    ASSERT_EQ(found.size(), expected.size()) << c;
    for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i].distance, expected[i].distance) << c << ", place " << i;
        if (found[i].distance < std::numeric_limits<float>::infinity()) {
            ASSERT_EQ(found[i].id, expected[i].id) << c << ", place " << i;
        }
    }
}

// A device subtracts a common origin near the centroids first, so that it may break ties between
// lists differently. Everything else must be equal.
inline void expect_same_pass(const PassCase& c, const PassData& data, const PassResults& found,
                             const PassResults& expected) {
    ASSERT_EQ(found.lists.size(), expected.lists.size()) << c;
    size_t other = 0;
    for (size_t r = 0; r < found.lists.size(); ++r) {
        if (found.lists[r] != expected.lists[r]) {
            double distance[2] = {};
            const uint32_t dims = c.code_dims();
            for (uint32_t d = 0; d < dims; ++d) {
                const double x = data.rows[r * c.dims + (c.kept ? c.dims - 1 - d : d)];
                const double a = x - data.centroids[size_t{found.lists[r]} * dims + d];
                const double b = x - data.centroids[size_t{expected.lists[r]} * dims + d];
                distance[0] += a * a;
                distance[1] += b * b;
            }
            ASSERT_EQ(distance[0], distance[1]) << c << ", row " << r;
            ++other;
            continue;
        }
        // A score near the middle of two steps may be rounded to the other one.
        if (c.rounds > 0 &&
            !std::equal(found.codes.begin() + r * c.m, found.codes.begin() + (r + 1) * c.m,
                        expected.codes.begin() + r * c.m)) {
            ++other;
            continue;
        }
        for (uint32_t j = 0; j < c.m; ++j)
            ASSERT_EQ(found.codes[r * c.m + j], expected.codes[r * c.m + j])
                << c << ", row " << r << ", byte " << j;
        ASSERT_EQ(found.offsets[r], expected.offsets[r]) << c << ", row " << r;
    }
    EXPECT_LE(other, found.lists.size() / (c.rounds > 0 ? 10 : 100)) << c;
    expect_same_neighbors(c, found.nearest, expected.nearest);
    if (c.report_nearest && c.rows > 0) expect_same_neighbors(c, found.reported, expected.nearest);
}

inline std::vector<PassCase> pass_cases() {
    std::vector<PassCase> cases(15);
    cases[1].report_nearest = true;
    cases[1].wide_k = 1001;
    cases[2].queries = 0;
    cases[3].lists = 0;
    cases[4] = {
        .dims = 7, .lists = 1, .m = 7, .rows = 1001, .queries = 1, .k = 1, .block_rows = 64};
    cases[5].metric = Metric::inner_product;
    cases[5].report_nearest = true;
    cases[5].wide = 0;
    cases[6].k = 101;
    cases[6].rows = 90;  // fewer than k
    cases[7].rows = 0;
    cases[8] = {.lists = 0, .rows = 3000, .queries = 2500, .k = 12, .block_rows = 450};
    // More rows than a device works on at once.
    cases[9] = {
        .lists = 5, .rows = 60000, .queries = 9, .block_rows = 3000, .report_nearest = true};
    cases[10] = {.lists = 5, .rows = 60000, .queries = 9, .block_rows = 26000};
    cases[11].bits = 4;
    cases[12].kept = 9;
    cases[12].m = 4;
    cases[13] = {.dims = 12, .lists = 5, .m = 3, .rows = 900, .rounds = 2};
    cases[14].kept = 40;
    cases[14].bits = 4;
    cases[14].report_nearest = true;
    const size_t of_floats = cases.size();
    for (size_t i = 0; i < of_floats; ++i) {
        PassCase c = cases[i];
        c.elements = RowElements::float16;
        cases.push_back(c);
    }
    return cases;
}

}  // namespace pgwarp
