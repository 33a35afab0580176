#include "kernels/sort_keys.h"
#include "kernels/random.h"
#include "test/kernels/seed.h"

#include <algorithm>
#include <csignal>
#include <gtest/gtest.h>
#include <set>
#include <vector>

namespace pgwarp {

namespace {

constexpr int shift = 48;

struct Keys {
    std::vector<std::vector<uint64_t>> chunks;
    std::vector<const uint64_t*> pointers;
    size_t count = 0;
    size_t chunk_rows;

    // Each key once; groups of all sizes, some of them empty.
    Keys(size_t wanted, uint32_t groups, size_t rows, Random* random) : chunk_rows(rows) {
        std::set<uint64_t> seen;
        while (count < wanted) {
            const uint64_t group = random->below(random->below(groups) + 1);
            const uint64_t key = group << shift | random->next() >> (64 - shift);
            if (!seen.insert(key).second) continue;
            if (count++ % rows == 0) chunks.emplace_back();
            chunks.back().push_back(key);
        }
        for (const auto& chunk : chunks) pointers.push_back(chunk.data());
    }
    uint64_t at(size_t row) const { return chunks[row / chunk_rows][row % chunk_rows]; }
    ChunkedKeys view() const { return {pointers.data(), chunk_rows, count}; }
};

TEST(SortKeys, SortsByGroupAndNumber) {
    Random random(test_seed());
    for (const int threads : {1, 4}) {
        Workers workers(threads);
        for (const size_t count : {0, 1, 2, 99, 100, 101, 20000})
            for (const uint32_t groups : {1u, 3u, 33u, 5000u}) {
                SCOPED_TRACE(testing::Message() << count << " rows, " << groups << " groups");
                const Keys keys(count, groups, 100, &random);
                std::vector<KeyedRow> sorted(count);
                std::vector<uint64_t> starts(groups + 1, 77);
                sort_by_group(workers, keys.view(), shift, groups, sorted.data(), starts.data());
                ASSERT_EQ(starts[0], 0u);
                ASSERT_EQ(starts[groups], count);
                std::vector<bool> seen(count);
                for (size_t i = 0; i < count; ++i) {
                    ASSERT_LT(sorted[i].row, count);
                    ASSERT_FALSE(seen[sorted[i].row]);
                    seen[sorted[i].row] = true;
                    ASSERT_EQ(sorted[i].key, keys.at(sorted[i].row));
                    if (i > 0) {
                        ASSERT_LT(sorted[i - 1].key, sorted[i].key);
                    }
                    const uint64_t group = sorted[i].key >> shift;
                    ASSERT_LE(starts[group], i);
                    ASSERT_GT(starts[group + 1], i);
                }
            }
    }
}

TEST(SortKeys, CanBeDoneAgainAfterAnInterrupt) {
    Random random(test_seed());
    const Keys keys(5000, 40, 64, &random);
    std::vector<KeyedRow> sorted(5000);
    std::vector<uint64_t> starts(41);
    volatile std::sig_atomic_t interrupt = 1;
    Workers workers(2, &interrupt);
    EXPECT_THROW(sort_by_group(workers, keys.view(), shift, 40, sorted.data(), starts.data()),
                 Interrupted);
    interrupt = 0;
    sort_by_group(workers, keys.view(), shift, 40, sorted.data(), starts.data());
    EXPECT_TRUE(std::is_sorted(sorted.begin(), sorted.end(),
                               [](const auto& a, const auto& b) { return a.key < b.key; }));
}

}  // namespace

}  // namespace pgwarp
