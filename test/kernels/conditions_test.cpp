// Conditions on attributes against a plain check of each entry, in memory that ends where it must.

#include "kernels/conditions.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/guarded.h"

namespace pgwarp {
namespace {

AttributeLayout layout_of(const std::vector<int>& bytes) {
    AttributeLayout layout;
    layout.count = static_cast<uint32_t>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), layout.bytes);
    return layout;
}

// Random entries in columns that may have room for more than there are.
struct Entries {
    AttributeLayout layout;
    uint32_t stride;
    uint32_t count;
    std::vector<std::vector<uint64_t>> numbers;  // (attributes)(count)
    std::vector<std::vector<bool>> nulls;
    Guarded<uint8_t> memory;

    Entries(std::mt19937& random, const std::vector<int>& bytes, uint32_t stride_, uint32_t count_,
            uint64_t range)
        : layout(layout_of(bytes)),
          stride(stride_),
          count(count_),
          memory(size_t{layout.entry_bytes() - 1} * stride + count) {
        std::mt19937_64 wide(random());
        std::fill(memory.begin(), memory.end(), uint8_t{0});
        for (uint32_t a = 0; a < layout.count; ++a) {
            numbers.emplace_back(count);
            nulls.emplace_back(count);
            for (uint32_t i = 0; i < count; ++i) {
                const bool null = random() % 5 == 0;
                const uint64_t mask = ~uint64_t{0} >> (64 - 8 * layout.bytes[a]);
                const uint64_t number = null ? 0 : (range ? wide() % range : wide()) & mask;
                numbers[a][i] = number;
                nulls[a][i] = null;
                put(a, i, number, null);
            }
        }
    }
    void put(uint32_t a, uint32_t i, uint64_t number, bool null) {
        uint8_t* column = memory.data() + size_t{layout.bytes_before(a)} * stride;
        std::memcpy(column + size_t{i} * layout.bytes[a], &number, layout.bytes[a]);
        const uint32_t at = layout.bytes_before(layout.count) + a / 8;
        if (null) memory[size_t{at} * stride + i] |= static_cast<uint8_t>(1 << a % 8);
    }
    AttributeColumns columns() { return {&layout, memory.data(), stride, count}; }

    bool passes_one(const Condition& c, uint32_t i) const {
        const uint64_t x = numbers[c.attribute][i];
        if (nulls[c.attribute][i]) return c.kind == ConditionKind::is_null;
        switch (c.kind) {
            case ConditionKind::range:
                return x >= c.low && x <= c.high;
            case ConditionKind::among:
                return std::find(c.values.begin(), c.values.end(), x) != c.values.end();
            case ConditionKind::not_among:
                return std::find(c.values.begin(), c.values.end(), x) == c.values.end();
            case ConditionKind::overlaps:
                for (const uint64_t bits : c.values)
                    if ((x & bits) == bits) return true;
                return false;
            case ConditionKind::contains:
                return (x & c.low) == c.low;
            case ConditionKind::is_not_null:
                return true;
            case ConditionKind::is_null:
            case ConditionKind::never:
                return false;
        }
        return false;
    }
    void compare(const std::vector<Condition>& conditions) {
        std::vector<uint64_t> passing(passing_words(count) + 1, 0x5555);
        const uint32_t passed = check_conditions(columns(), conditions, passing.data());
        uint32_t expected = 0;
        for (uint32_t i = 0; i < count; ++i) {
            const bool all = std::all_of(conditions.begin(), conditions.end(),
                                         [&](const Condition& c) { return passes_one(c, i); });
            expected += all;
            ASSERT_EQ(passing[i / 64] >> i % 64 & 1, all) << "entry " << i << " of " << count;
            ASSERT_EQ(passes(columns(), conditions, i), all) << "entry " << i;
        }
        EXPECT_EQ(passed, expected);
        if (count % 64 != 0) {
            EXPECT_EQ(passing[count / 64] >> count % 64, 0u);
        }
        EXPECT_EQ(passing[passing_words(count)], 0x5555u);
    }
};

class Conditions : public EveryTarget {};

TEST_P(Conditions, RangesOfEveryWidth) {
    for (const uint32_t count : {1u, 7u, 8u, 63u, 64u, 65u, 200u, 340u})
        for (const uint64_t range : {uint64_t{0}, uint64_t{10}}) {
            Entries entries(random, {1, 2, 4, 8}, count + 3, count, range);
            for (uint8_t a = 0; a < 4; ++a) {
                const uint64_t mask = ~uint64_t{0} >> (64 - 8 * entries.layout.bytes[a]);
                const uint64_t middle = range ? 5 : mask / 2 + 1;
                entries.compare({{ConditionKind::range, a, 0, mask, {}}});
                entries.compare({{ConditionKind::range, a, middle, ~uint64_t{0}, {}}});
                entries.compare({{ConditionKind::range, a, 0, middle, {}}});
                entries.compare({{ConditionKind::range, a, 3, 3, {}}});
                entries.compare({{ConditionKind::range, a, 7, 3, {}}});
                if (a < 3) entries.compare({{ConditionKind::range, a, mask + 1, ~uint64_t{0}, {}}});
                entries.compare({{ConditionKind::is_null, a, 0, 0, {}}});
                entries.compare({{ConditionKind::is_not_null, a, 0, 0, {}}});
                entries.compare({{ConditionKind::never, a, 0, 0, {}}});
            }
        }
}

TEST_P(Conditions, SetsOfFewAndManyValues) {
    for (const size_t size : {size_t{1}, size_t{8}, size_t{9}, size_t{100}, size_t{1024}}) {
        Entries entries(random, {1, 2, 4, 8}, 300, 300, 3 * size);
        std::vector<uint64_t> values;
        while (values.size() < size) {
            values.push_back(random() % (4 * size));
            std::sort(values.begin(), values.end());
            values.erase(std::unique(values.begin(), values.end()), values.end());
        }
        for (uint8_t a = 0; a < 4; ++a) {
            entries.compare({{ConditionKind::among, a, 0, 0, values}});
            entries.compare({{ConditionKind::not_among, a, 0, 0, values}});
            entries.compare({{ConditionKind::overlaps, a, 0, 0, values}});
        }
    }
    // A value that the column has no room for equals none.
    Entries narrow(random, {1}, 70, 70, 4);
    const uint64_t wide[] = {1, 258};
    narrow.compare({{ConditionKind::among, 0, 0, 0, wide}});
    narrow.compare({{ConditionKind::not_among, 0, 0, 0, wide}});
}

TEST_P(Conditions, Signatures) {
    Entries entries(random, {8}, 130, 130, 0);
    for (int i = 0; i < 20; ++i) {
        const uint64_t bits = uint64_t{1} << random() % 64 | uint64_t{1} << random() % 64;
        entries.compare({{ConditionKind::contains, 0, bits, 0, {}}});
    }
    entries.compare({{ConditionKind::contains, 0, 0, 0, {}}});
}

TEST_P(Conditions, ManyAtOnceOnManyAttributes) {
    std::vector<int> bytes;
    for (uint32_t a = 0; a < max_attributes; ++a) bytes.push_back(1 << a % 4);
    for (int round = 0; round < 20; ++round) {
        Entries entries(random, bytes, 128, 100 + random() % 29, 4);
        std::vector<Condition> conditions;
        const uint64_t values[] = {0, 2, 3};
        const size_t wanted = 1 + random() % 16;
        while (conditions.size() < wanted) {
            const auto a = static_cast<uint8_t>(random() % max_attributes);
            switch (random() % 3) {
                case 0:
                    conditions.push_back({ConditionKind::range, a, 0, 1 + random() % 3, {}});
                    break;
                case 1:
                    conditions.push_back({ConditionKind::among, a, 0, 0, values});
                    break;
                case 2:
                    conditions.push_back({ConditionKind::is_not_null, a, 0, 0, {}});
            }
        }
        entries.compare(conditions);
    }
    Entries entries(random, bytes, 64, 64, 4);
    entries.compare({});
}

PGWARP_EVERY_TARGET(Conditions);

}  // namespace
}  // namespace pgwarp
