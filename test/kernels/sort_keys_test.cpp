#include "kernels/sort_keys.h"
#include "kernels/random.h"
#include "test/kernels/seed.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <vector>

namespace pgwarp {

namespace {

std::vector<KeyedRow> sorted(std::vector<KeyedRow> rows) {
    std::vector<KeyedRow> other(rows.size());
    for (int shift = 0; shift < 64; shift += sort_digit_bits)
        if (sort_by_digit(rows.data(), rows.size(), shift, other.data())) rows.swap(other);
    return rows;
}

void expect_stable(const std::vector<KeyedRow>& rows) {
    std::vector<KeyedRow> expected = rows;
    std::stable_sort(expected.begin(), expected.end(),
                     [](const KeyedRow& a, const KeyedRow& b) { return a.key < b.key; });
    const std::vector<KeyedRow> result = sorted(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
        ASSERT_EQ(result[i].key, expected[i].key) << i;
        ASSERT_EQ(result[i].row, expected[i].row) << i;
    }
}

TEST(SortKeys, IsAStableSort) {
    Random random(test_seed());
    for (const size_t count : {0, 1, 2, 3, 1000, 20000})
        for (const int bits : {1, 5, 11, 12, 33, 63, 64}) {
            std::vector<KeyedRow> rows(count);
            for (size_t i = 0; i < count; ++i) rows[i] = {random.next() >> (64 - bits), i};
            expect_stable(rows);
        }
}

TEST(SortKeys, LeavesEqualDigitsAlone) {
    const std::vector<KeyedRow> rows{{5, 0}, {5, 1}, {5 + (1 << sort_digit_bits), 2}};
    std::vector<KeyedRow> other(rows.size(), KeyedRow{7, 7});
    EXPECT_FALSE(sort_by_digit(rows.data(), rows.size(), 0, other.data()));
    EXPECT_EQ(other[0].key, 7u);
    EXPECT_TRUE(sort_by_digit(rows.data(), rows.size(), sort_digit_bits, other.data()));
    EXPECT_EQ(other[2].row, 2u);
}

}  // namespace

}  // namespace pgwarp
