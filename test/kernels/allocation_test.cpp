// Memory running out at any one allocation: it is said as std::bad_alloc, what was promised to stay
// as it was has stayed, and the same objects work afterwards.

#include "kernels/executor.h"
#include "kernels/failing_device.h"
#include "kernels/stand_in_device.h"
#include "kernels/mirror.h"

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
    const std::unique_ptr<Executor> executor = make_cpu_executor(3, {});
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

// Every search that a mirror has taken over is answered once, whatever fails meanwhile, and what
// the mirror holds is whole afterwards.
TEST_F(Allocation, MirrorAnswersEverySearchOnce) {
    const RandomModel model(random, shape);
    volatile int fault = static_cast<int>(Fault::none);
    const std::unique_ptr<Device> device =
        make_failing_device(make_stand_in_device(1, size_t{1} << 30), &fault);
    const MirrorKey keys[] = {{1, 10, 5, 100, 77}, {1, 11, 5, 101, 78}, {2, 12, 5, 102, 79}};
    constexpr uint32_t k = 5, probes = 2;
    const std::vector<uint8_t> codes(m * 4 + 8), tids(4 * 6);
    const std::vector<float> offsets(4);
    const ListPage pages[] = {{codes.data(), 4, 4, offsets.data(), tids.data()}};
    struct Asked {
        std::vector<Neighbor> found{k};
        std::vector<MirrorProbe> probed{probes};
        MirrorSearch search{};
        int answers = 0;
    };
    for (const Fault thrown : {Fault::none, Fault::failed, Fault::lost, Fault::unknown,
                               Fault::out_of_memory, Fault::no_host_memory})
        for (const bool forgets : {false, true})
            for (int64_t nth = 0, reached = true; reached; ++nth) {
                SCOPED_TRACE(testing::Message()
                             << "fault " << static_cast<int>(thrown) << ", allocation " << nth);
                ASSERT_LT(nth, 1000) << "no end of allocations";
                fault = static_cast<int>(Fault::none);
                Mirror mirror(*device, size_t{1} << 30);
                for (const MirrorKey& key : keys) {
                    mirror.add(key, model.quantizer());
                    // So that there is something to give up.
                    ASSERT_TRUE(mirror.put(key, 1, {1, 1, 4, 0}, pages));
                }
                // Each index has searches of two classes.
                std::vector<Asked> asked(12);
                for (size_t i = 0; i < asked.size(); ++i) {
                    Asked& one = asked[i];
                    one.found.resize(200);
                    one.search = {.key = keys[i / 4],
                                  .query = rows.data(),
                                  .dims = dims,
                                  .k = i % 2 ? 200 : k,
                                  .probes = probes,
                                  .outcome = MirrorSearch::Outcome::unknown,
                                  .found = one.found.data(),
                                  .found_count = 0,
                                  .probed = one.probed.data(),
                                  .probed_count = 0};
                    mirror.submit(&one.search);
                }
                fault = static_cast<int>(thrown);
                std::vector<MirrorSearch*> answered;
                const auto try_once = [&](auto&& work) {
                    try {
                        work();
                    } catch (...) {
                        // What it says is another test's.
                    }
                };
                until_failure = nth;
                try_once([&] { mirror.start_next(1); });
                if (forgets) try_once([&] { mirror.forget(1, 0); });
                for (int turn = 0; turn < 30; ++turn) {
                    try_once([&] { mirror.start_next(1); });
                    try_once([&] { mirror.collect(&answered); });
                }
                reached = until_failure.exchange(-1) < 0;
                // No batch is believed that has failed once.
                for (const MirrorSearch* search : answered)
                    EXPECT_TRUE(thrown == Fault::none ||
                                search->outcome != MirrorSearch::Outcome::found);
                fault = static_cast<int>(Fault::none);
                for (int turn = 0; turn < 30; ++turn) {
                    try_once([&] { mirror.start_next(1); });
                    try_once([&] { mirror.collect(&answered); });
                }
                EXPECT_FALSE(mirror.busy());
                for (const MirrorSearch* search : answered)
                    for (Asked& one : asked) one.answers += search == &one.search;
                EXPECT_EQ(answered.size(), asked.size());
                for (const Asked& one : asked) EXPECT_EQ(one.answers, 1);
                if (HasFailure()) return;
            }
}

}  // namespace
}  // namespace pgwarp
