// The device 'host': budgets, charges and what it copies, as a GPU would.
#include "kernels/stand_in_device.h"

#include <gtest/gtest.h>

#include <vector>

namespace pgwarp {
namespace {

constexpr uint32_t dims = 4;
constexpr size_t count = 100;
constexpr size_t row_bytes = dims * sizeof(float);

std::vector<float> some_rows() {
    std::vector<float> rows(count * dims);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i * 7 % 31);
    return rows;
}

TEST(StandInDevice, KeepsToItsBudget) {
    std::vector<float> rows = some_rows();
    const auto device = make_stand_in_device(1, count * row_bytes);
    const auto executor = device->make_executor();
    EXPECT_STREQ(device->name(), "host");
    auto taken = executor->take(rows.data(), count, dims);
    EXPECT_EQ(device->memory().used, count * row_bytes);
    EXPECT_THROW(executor->take(rows.data(), 1, dims), OutOfDeviceMemory);
    taken.reset();
    EXPECT_EQ(device->memory().used, 0u);
    EXPECT_EQ(device->memory().empty, count * row_bytes) << "until trim()";
    device->trim(0);
    EXPECT_EQ(device->memory().empty, 0u);
    taken = executor->take(rows.data(), count, dims);
    EXPECT_EQ(device->memory().used, count * row_bytes);
}

// Other processes' charges count against the budget, and a give-back reaches them.
TEST(StandInDevice, ChargesWhatItTakes) {
    std::vector<float> rows = some_rows();
    uint64_t shared = 0;
    MemoryCharge ours(shared), theirs(shared);
    ASSERT_TRUE(theirs.take(row_bytes, count * row_bytes));
    const auto device = make_stand_in_device(1, count * row_bytes, {}, &ours);
    const auto executor = device->make_executor();
    EXPECT_THROW(executor->take(rows.data(), count, dims), OutOfDeviceMemory);
    EXPECT_EQ(shared, row_bytes) << "a failed take charges nothing";
    {
        const auto taken = executor->take(rows.data(), count - 1, dims);
        EXPECT_EQ(shared, count * row_bytes);
    }
    EXPECT_EQ(shared, row_bytes);
}

TEST(StandInDevice, CopiesRows) {
    std::vector<float> rows = some_rows();
    const std::vector<float> before = rows;
    const auto device = make_stand_in_device(1, size_t{1} << 20);
    const auto executor = device->make_executor();
    const auto taken = executor->take(rows.data(), count, dims);
    const std::vector<float> centroids(dims, 1.0f);
    executor->make_residuals(*taken, 1, centroids.data());
    EXPECT_EQ(rows, before);
}

// Blocks arrive in any order; their positions give the order of the rows.
TEST(StandInDevice, OrdersBlocks) {
    const std::vector<float> rows = some_rows();
    const auto device = make_stand_in_device(1, size_t{1} << 20);
    const auto executor = device->make_executor();
    const auto start_of = [&](std::initializer_list<uint64_t> order) {
        const auto builder = executor->build_dataset(dims, count, RowElements::float32);
        for (const uint64_t block : order) builder->add(block, rows.data() + block * 25 * dims, 25);
        EXPECT_EQ(builder->count(), count);
        EXPECT_THROW(builder->add(4, rows.data(), 1), std::length_error);
        const auto data = builder->finish();
        std::vector<float> centroids(10 * dims);
        executor->kmeans_start(*data, 10, 1, centroids.data());
        return centroids;
    };
    EXPECT_EQ(start_of({0, 1, 2, 3}), start_of({2, 0, 3, 1}));
}

}  // namespace
}  // namespace pgwarp
