// Memory running out at any one allocation: it is said as std::bad_alloc, what was promised to stay
// as it was has stayed, and the same objects work afterwards.

#include "kernels/executor.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/reference.h"
#include "test/kernels/seed.h"

namespace {

// The allocation, counted over all threads, that fails next; none where negative.
std::atomic<int64_t> until_failure{-1};

void* allocate(size_t size) {
    if (until_failure.load(std::memory_order_relaxed) >= 0 && until_failure.fetch_sub(1) == 0)
        throw std::bad_alloc();
    if (void* memory = std::malloc(size ? size : 1)) return memory;
    throw std::bad_alloc();
}

}  // namespace

// Not inlined, or gcc sees free() of what it takes to come from the other operator new.
[[gnu::noinline]] void* operator new(size_t size) {
    return allocate(size);
}
[[gnu::noinline]] void* operator new[](size_t size) {
    return allocate(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept {
    std::free(memory);
}

namespace pgwarp {
namespace {

// Runs `work` with its first allocation failing, then with its second, and so on until none does.
template <typename Work, typename Check>
void fail_each_allocation(Work work, Check check) {
    for (int64_t nth = 0; nth < 1000; ++nth) {
        SCOPED_TRACE(testing::Message() << "allocation " << nth);
        until_failure = nth;
        bool failed = false;
        try {
            work();
        } catch (const std::bad_alloc&) {
            failed = true;
        }
        const bool reached = until_failure.exchange(-1) < 0;
        if (failed) check();
        if (!reached) {
            EXPECT_FALSE(failed);
            EXPECT_GT(nth, 0) << "nothing is allocated: the test tests nothing";
            return;
        }
    }
    FAIL() << "no end of allocations";
}

class Allocation : public testing::Test {
  protected:
    static constexpr uint32_t dims = 12, lists = 5, m = 4;
    static constexpr size_t count = 300;
    const QuantizerShape shape{dims, lists, m, Metric::l2};
    std::mt19937 random{test_seed()};
    const std::vector<float> rows = normal_floats(random, count* dims);
    const std::unique_ptr<Executor> executor = make_cpu_executor(3, nullptr);
};

TEST_F(Allocation, FewerThreadsStartRatherThanNone) {
    fail_each_allocation(
        [&] {
            Workers workers(4);
            std::atomic<int> done{0};
            workers.run(10, [&](size_t, int) { ++done; });
            EXPECT_EQ(done, 10);
        },
        [] {});
}

TEST_F(Allocation, TrainingKeepsItsModel) {
    std::vector<float> sample = rows;
    const auto data = executor->take(sample.data(), count, dims);
    std::vector<float> centroids(lists * dims), codebook(dims * codewords);
    executor->kmeans_start(*data, lists, 1, centroids.data());
    executor->codebook_start(*data, shape, 1, codebook.data());
    const std::vector<float> centroids_before = centroids, codebook_before = codebook;
    // Vectors are compared without copies, which would allocate.
    fail_each_allocation([&] { executor->kmeans_step(*data, lists, centroids.data()); },
                         [&] { EXPECT_TRUE(centroids == centroids_before); });
    fail_each_allocation([&] { executor->codebook_step(*data, shape, codebook.data()); },
                         [&] { EXPECT_TRUE(codebook == codebook_before); });
    bool changed = false;
    fail_each_allocation(
        [&] {
            executor->make_residuals(*data, lists, centroids.data());
            changed = true;
        },
        [&] { EXPECT_TRUE(changed || sample == rows); });
}

TEST_F(Allocation, EncodingAndSearchWorkAfterwards) {
    const RandomModel model(random, shape);
    std::vector<uint32_t> list_of(count);
    std::vector<uint8_t> codes(count * m);
    std::vector<float> offsets(count);
    const Encoding encoding{rows.data(), count, list_of.data(), codes.data(), offsets.data()};
    executor->encode(model.quantizer(), encoding);
    const std::vector<uint8_t> expected = codes;
    fail_each_allocation([&] { executor->encode(model.quantizer(), encoding); }, [] {});
    EXPECT_EQ(codes, expected);

    const std::vector<uint64_t> ids(count, 1);
    std::vector<Neighbor> nearest(5, Neighbor{std::numeric_limits<float>::infinity(), 0});
    fail_each_allocation(
        [&] {
            executor->exact_search({rows.data(), 1, rows.data(), count, ids.data(), dims,
                                    Metric::l2, 5, nearest.data()});
        },
        [] {});
    EXPECT_NEAR(nearest[0].distance, 0, 1e-4);
}

}  // namespace
}  // namespace pgwarp
