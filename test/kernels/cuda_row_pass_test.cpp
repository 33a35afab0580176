// Passes over rows on the device, and data sets that come in parts, against the CPU.

#include "kernels/cuda/executor.h"

#include <csignal>
#include <numeric>

#include "test/kernels/cuda_fixture.h"
#include "test/kernels/row_pass_check.h"

namespace pgwarp::gpu {
namespace {

class CudaRowPass : public CudaTest {};

TEST_F(CudaRowPass, IsTheWholeAtOnce) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context);
    for (const PassCase& c : pass_cases()) {
        const PassData data(c, random);
        expect_same_pass(c, data, run_pass(*cuda, c, data), expected_pass(c, data));
    }
}

// More rows than are gathered, more queries than a tile has room for, long pieces.
TEST_F(CudaRowPass, LargeAndOdd) {
    if (small_tests()) GTEST_SKIP() << "large";
    std::mt19937 random(test_seed());
    for (PassCase c : {PassCase{.lists = 0, .rows = 150001, .queries = 3001, .block_rows = 9999},
                       PassCase{.dims = 40,
                       .lists = 300,
                       .m = 2,
                       .rows = 20001,
                       .block_rows = 5000,
                       .report_nearest = true},
                       PassCase{.dims = 33,
                       .lists = 1000,
                       .m = 33,
                       .rows = 100003,
                       .queries = 256,
                       .k = 101,
                       .block_rows = 1900,
                       .report_nearest = true}}) {
        const Context context(options(size_t{1} << 30, size_t{64} << 20));
        const auto cuda = make_executor(context);
        const PassData data(c, random);
        expect_same_pass(c, data, run_pass(*cuda, c, data), expected_pass(c, data));
    }
}

// Rows in memory that the device knows are copied while others are worked on.
TEST_F(CudaRowPass, ReadsMemoryItKnows) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context);
    PassCase c;
    c.report_nearest = true;
    PassData data(c, random);
    cuda->register_memory(data.rows.data(), data.rows.size() * sizeof(float));
    expect_same_pass(c, data, run_pass(*cuda, c, data), expected_pass(c, data));
    cuda->unregister_memory(data.rows.data());
    cuda->unregister_memory(data.rows.data());
    expect_same_pass(c, data, run_pass(*cuda, c, data), expected_pass(c, data));
}

TEST_F(CudaRowPass, TakesNothingWhenInterrupted) {
    volatile std::sig_atomic_t interrupt = 1;
    DeviceOptions wanted = options();
    wanted.interrupts = &interrupt;
    const Context context(wanted);
    const auto cuda = make_executor(context);
    RowPassInput input;
    input.dims = 4;
    input.block_rows = 10;
    const std::vector<float> queries(8);
    input.queries = queries.data();
    input.query_count = 2;
    input.k = 3;
    const auto pass = cuda->begin_pass(input);
    const std::vector<float> rows(40);
    std::vector<uint64_t> ids(10);
    std::iota(ids.begin(), ids.end(), 100);
    EXPECT_THROW(pass->start(rows.data(), ids.data(), 10), Interrupted);
    interrupt = 0;
    pass->start(rows.data(), ids.data(), 10);
    EXPECT_EQ(pass->finish().count, 10u);
    std::vector<Neighbor> nearest(6);
    pass->nearest(nearest.data());
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(nearest[i].id, 100 + i % 3);
}

TEST_F(CudaRowPass, GivesItsMemoryBack) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context);
    const PassCase c;
    const PassData data(c, random);
    for (int i = 0; i < 3; ++i) run_pass(*cuda, c, data);
    EXPECT_EQ(context.memory.use().used, 0u);
}

TEST_F(CudaRowPass, SaysWhenMemoryIsShort) {
    std::mt19937 random(test_seed());
    const Context context(options(size_t{1} << 20));
    const auto cuda = make_executor(context);
    PassCase c;
    c.block_rows = 100000;
    c.rows = 10;
    const PassData data(c, random);
    EXPECT_THROW(run_pass(*cuda, c, data), OutOfDeviceMemory);
    EXPECT_EQ(context.memory.use().used, 0u);
    const auto builder = cuda->build_dataset(100, 1000000, RowElements::float32);
    const std::vector<float> rows(100 * 3000);
    EXPECT_THROW(for (uint64_t i = 0; i < 100; ++i) builder->add(i, rows.data(), 3000),
                 OutOfDeviceMemory);
}

TEST_F(CudaRowPass, PutsPartsInOrder) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context), cpu = make_cpu_executor(2, {});
    const uint32_t dims = 13, clusters = 20;
    const size_t parts = 40, part_rows = 101;
    std::vector<float> rows = normal_floats(random, parts * part_rows * dims);
    std::vector<float16> halves(rows.size());
    ASSERT_TRUE(to_float16s(rows.data(), rows.size(), halves.data()));
    to_floats(halves.data(), rows.size(), rows.data());
    std::vector<size_t> order(parts);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (const RowElements elements : {RowElements::float32, RowElements::float16}) {
        const auto builder = cuda->build_dataset(dims, parts * part_rows, elements);
        for (const size_t part : order) {
            const size_t first = part * part_rows * dims;
            if (elements == RowElements::float16)
                builder->add(part * 3, halves.data() + first, part_rows);
            else
                builder->add(part * 3, rows.data() + first, part_rows);
        }
        EXPECT_EQ(builder->count(), parts * part_rows);
        const auto built = builder->finish();
        const auto taken = cpu->take(rows.data(), parts * part_rows, dims);
        std::vector<float> a(clusters * dims), b(clusters * dims);
        cuda->kmeans_start(*built, clusters, 7, a.data());
        cpu->kmeans_start(*taken, clusters, 7, b.data());
        EXPECT_EQ(a, b);
        for (int i = 0; i < 3; ++i) {
            const double ours = cuda->kmeans_step(*built, clusters, a.data());
            EXPECT_NEAR(ours, cpu->kmeans_step(*taken, clusters, b.data()), 1e-4 * ours);
        }
    }
}

TEST_F(CudaRowPass, EveryKernelOnce) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context);
    for (const uint32_t lists : {0, 9}) {
        PassCase c{.lists = lists, .rows = 500, .block_rows = 200};
        c.elements = RowElements::float16;
        const PassData data(c, random);
        expect_same_pass(c, data, run_pass(*cuda, c, data), expected_pass(c, data));
    }
}

}  // namespace
}  // namespace pgwarp::gpu
