// Scanning lists for sixteen queries at once: bounds that hold, and answers that do not change.

#include "kernels/cpu/group_scan.h"
#include "kernels/cpu/shared_search.h"
#include "kernels/workers.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "test/kernels/every_target.h"
#include "test/kernels/list_check.h"

namespace pgwarp {
namespace {

// These share scans whether it pays or not.
class GroupScanTest : public EveryTarget {
  protected:
    void SetUp() override {
        EveryTarget::SetUp();
        share_always(true);
    }
    void TearDown() override {
        share_always(false);
        EveryTarget::TearDown();
    }
};

TEST_P(GroupScanTest, BytesAreALowerBound) {
    std::normal_distribution<float> normal;
    for (const uint32_t m : {1u, 2u, 7u, 25u, 100u, most_group_m}) {
        std::vector<float> table(size_t{m} * codewords);
        for (float& x : table) x = 3 * normal(random) - 1;
        std::vector<uint8_t> bytes(table.size());
        const ByteTable made = make_byte_table(table.data(), m, bytes.data());
        ASSERT_TRUE(made.sound);
        for (int i = 0; i < 100; ++i) {
            double sum = 0;
            uint32_t sum_of_bytes = 0;
            bool cut = false;
            for (uint32_t j = 0; j < m; ++j) {
                const size_t at = size_t{j} * codewords + random() % codewords;
                sum += table[at];
                sum_of_bytes += bytes[at];
                cut |= bytes[at] == 255;
            }
            const double low = made.base + double{made.step} * sum_of_bytes;
            const double off = 1e-5 * (std::fabs(made.base) + made.step * 255 * m);
            EXPECT_LE(low, sum + off) << m;
            if (!cut) {
                EXPECT_GE(low + made.step * m, sum - off) << m;
            }
        }
    }
}

TEST_P(GroupScanTest, TablesWithoutABound) {
    std::vector<float> table(codewords, 2.0f);
    std::vector<uint8_t> bytes(codewords, 9);
    const ByteTable flat = make_byte_table(table.data(), 1, bytes.data());
    EXPECT_TRUE(flat.sound);
    EXPECT_EQ(flat.base, 2);
    EXPECT_EQ(bytes, std::vector<uint8_t>(codewords, 0));
    table[3] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(make_byte_table(table.data(), 1, bytes.data()).sound);
    table[3] = 3e38f, table[4] = -3e38f;
    EXPECT_FALSE(make_byte_table(table.data(), 1, bytes.data()).sound);
    table.assign(codewords, 0);
    table[3] = 1e-39f;
    EXPECT_FALSE(make_byte_table(table.data(), 1, bytes.data()).sound);
}

TEST_P(GroupScanTest, SumsAndWhatPasses) {
    for (int i = 0; i < 30; ++i) {
        const uint32_t m = 1 + random() % 40;
        const uint32_t count = 1 + random() % 300;
        const uint32_t stride = (count + 7) / 8 * 8;
        std::vector<std::vector<uint8_t>> tables(group_size);
        const uint8_t* pointers[group_size];
        float steps[group_size], bases[group_size], bounds[group_size];
        for (uint32_t q = 0; q < group_size; ++q) {
            tables[q].resize(size_t{m} * codewords);
            for (uint8_t& byte : tables[q]) byte = static_cast<uint8_t>(random());
            pointers[q] = tables[q].data();
            steps[q] = 0.5f + static_cast<float>(random() % 4);
            bases[q] = static_cast<float>(random() % 100);
            bounds[q] = bases[q] + steps[q] * 128.0f * static_cast<float>(m);
        }
        bounds[3] = std::numeric_limits<float>::infinity();
        bounds[5] = -std::numeric_limits<float>::infinity();
        std::vector<uint8_t> interleaved(size_t{m} * codewords * group_size);
        interleave_tables(pointers, m, interleaved.data());
        for (size_t c = 0; c < size_t{m} * codewords; ++c)
            for (uint32_t q = 0; q < group_size; ++q)
                ASSERT_EQ(interleaved[c * group_size + q], tables[q][c]);

        std::vector<uint8_t> codes(size_t{m} * stride + 8);
        for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
        std::vector<float> offsets(count);
        for (float& offset : offsets) offset = static_cast<float>(random() % 50);
        std::vector<uint16_t> sums(size_t{stride} * group_size), passed(count);
        scan_group({interleaved.data(),
                    m,
                    {codes.data(), stride, count, offsets.data()},
                    steps,
                    bases,
                    bounds,
                    sums.data(),
                    passed.data()});
        for (uint32_t l = 0; l < count; ++l)
            for (uint32_t q = 0; q < group_size; ++q) {
                uint32_t sum = 0;
                for (uint32_t j = 0; j < m; ++j)
                    sum += tables[q][size_t{j} * codewords + codes[size_t{j} * stride + l]];
                ASSERT_EQ(sums[size_t{l} * group_size + q], sum);
                // All of these are exact.
                ASSERT_EQ(passed[l] >> q & 1,
                          bases[q] + steps[q] * static_cast<float>(sum) + offsets[l] <= bounds[q]);
            }
    }
}

// One query at a time is searched in floats alone; the answers are the same to the last bit.
void expect_same_as_alone(const ListCase& c, unsigned seed) {
    SCOPED_TRACE(testing::Message() << c);
    ListWorld world(c, seed);
    const auto store = make_cpu_list_store(world.quantizer(), world.attributes(), 2, {});
    world.put_all(*store);
    const auto together = world.make_batch(*store);
    store->search(*together, c.queries);
    const auto alone = store->make_batch({1, c.k, c.probes});
    for (size_t q = 0; q < c.queries; ++q) {
        std::copy_n(together->queries + q * c.dims, c.dims, alone->queries);
        alone->wanted[0] = together->wanted[q];
        store->search(*alone, 1);
        ASSERT_EQ(together->found_counts[q], alone->found_counts[0]);
        for (uint32_t i = 0; i < alone->found_counts[0]; ++i) {
            const Neighbor& mine = together->found[q * together->found_stride + i];
            ASSERT_EQ(mine.id, alone->found[i].id) << q << ' ' << i;
            ASSERT_EQ(mine.distance, alone->found[i].distance);
        }
        for (uint32_t i = 0; i < std::min(c.probes, c.lists); ++i)
            ASSERT_EQ(together->probed[q * together->probed_stride + i], alone->probed[i]);
    }
}

TEST_P(GroupScanTest, ManyQueriesFindWhatOneFinds) {
    unsigned seed = test_seed();
    for (ListCase c : list_cases()) {
        // Filtered queries share no scan.
        if (c.filtered || !c.attributes.empty()) continue;
        c.queries = 100 + seed % 50;
        expect_same_as_alone(c, ++seed);
    }
    // More than one share of queries, and lists longer than one part.
    ListCase c;
    c.queries = 2500;
    expect_same_as_alone(c, ++seed);
    c.queries = 40, c.entries = 30000, c.lists = 3, c.probes = 2, c.k = 50;
    expect_same_as_alone(c, ++seed);
}

// Short lists, long ones, and whatever the rule decides on: the answers are the same.
TEST_P(GroupScanTest, SharingWhereItPaysChangesNothing) {
    share_always(false);
    unsigned seed = test_seed();
    ListCase c;
    c.queries = 500, c.entries = 2000;
    expect_same_as_alone(c, ++seed);
    c.queries = 200, c.entries = 60000, c.lists = 4, c.probes = 3, c.k = 5;
    expect_same_as_alone(c, ++seed);
}

TEST_P(GroupScanTest, QueriesWithTheirOwnWishes) {
    ListCase c;
    c.queries = 300, c.k = 100, c.probes = 20;
    ListWorld world(c, test_seed());
    const auto store = make_cpu_list_store(world.quantizer(), world.attributes(), 3, {});
    world.put_all(*store);
    const auto batch = world.make_batch(*store);
    for (size_t q = 0; q < c.queries; ++q)
        batch->wanted[q] = {1 + static_cast<uint32_t>(random() % c.k),
                            1 + static_cast<uint32_t>(random() % c.probes)};
    // A query whose table is of no use in bytes.
    batch->queries[7] = 3e38f;
    store->search(*batch, c.queries);
    for (size_t q = 0; q < c.queries; ++q)
        if (q != 0) world.check(*batch, q);
}

TEST_P(GroupScanTest, ASearchOfManyCanBeInterrupted) {
    ListCase c;
    c.queries = 600, c.entries = 20000, c.probes = 20;
    ListWorld world(c, test_seed());
    volatile std::sig_atomic_t interrupt = 0, other = 0;
    const auto store =
        make_cpu_list_store(world.quantizer(), world.attributes(), 2, {&interrupt, &other});
    world.put_all(*store);
    const auto batch = world.make_batch(*store);
    for (int i = 0; i < 10; ++i) {
        interrupt = 0;
        other = 0;
        std::thread raise([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(500 * i));
            (i % 2 ? interrupt : other) = 1;
        });
        try {
            store->search(*batch, c.queries);
        } catch (const Interrupted&) {
        }
        raise.join();
    }
    EXPECT_THROW(store->search(*batch, c.queries), Interrupted);
    interrupt = 0;
    other = 0;
    store->search(*batch, c.queries);
    for (size_t q = 0; q < c.queries; q += 7) world.check(*batch, q);
}

PGWARP_EVERY_TARGET(GroupScanTest);

}  // namespace
}  // namespace pgwarp
