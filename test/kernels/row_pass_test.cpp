// Passes over rows on the CPU, on the host in a device's place, and with the CPU behind a device
// that fails at any moment.

#include "kernels/row_pass.h"

#include "kernels/fallback_executor.h"
#include "kernels/forwarding_executor.h"
#include "kernels/failing_device.h"
#include "kernels/stand_in_device.h"
#include "test/kernels/row_pass_check.h"
#include "test/kernels/seed.h"

#include <limits>
#include <numeric>
#include <random>

namespace pgwarp {
namespace {

std::unique_ptr<Executor> cpu() {
    return make_cpu_executor(1, {});
}

TEST(RowPass, IsTheWholeAtOnce) {
    std::mt19937 random(test_seed());
    const auto device = make_stand_in_device(2, size_t{1} << 30);
    for (const PassCase& c : pass_cases()) {
        const PassData data(c, random);
        const PassResults expected = expected_pass(c, data);
        expect_same_pass(c, data, run_pass(*cpu(), c, data), expected);
        expect_same_pass(c, data, run_pass(*device->make_executor(), c, data), expected);
    }
}

TEST(RowPass, GoesOnWhereTheDeviceFailed) {
    std::mt19937 random(test_seed());
    PassCase c;
    c.rows = 900;
    c.block_rows = 200;
    const PassData data(c, random);
    const PassResults expected = expected_pass(c, data);
    for (const Fault kind : {Fault::failed, Fault::lost, Fault::out_of_memory, Fault::late})
        for (int good = 0; good < 20; ++good) {
            SCOPED_TRACE(good);
            c.elements = good % 2 == 0 ? RowElements::float32 : RowElements::float16;
            volatile int fault = static_cast<int>(Fault::none);
            const auto device =
                make_failing_device(make_stand_in_device(1, size_t{1} << 30), &fault, good);
            FallbackExecutor executor(device->make_executor(), cpu, cpu);
            fault = static_cast<int>(kind);
            expect_same_pass(c, data, run_pass(executor, c, data), expected);
            // Late failures are those of searches, every other call.
            if (good < 8 || good > 15) {
                EXPECT_EQ(executor.failure().empty(), good > 15);
            }
        }
}

// A device that searches all blocks in flight when it is asked for the first, tells so, and fails
// when it is asked for another. It does nothing else.
class HastyDevice final : public ForwardingExecutor {
  public:
    HastyDevice() : ForwardingExecutor(cpu()) {}
    std::unique_ptr<RowPass> begin_pass(const RowPassInput& input) override {
        return std::make_unique<Pass>(*executor_, input);
    }

  protected:
    void run(const Work&) override { throw std::logic_error("not asked for here"); }

  private:
    class Pass final : public RowPass {
      public:
        Pass(Executor& executor, const RowPassInput& input)
            : pass_(make_plain_pass(executor, executor, input)) {}
        void start(const void* rows, const uint64_t* ids, size_t count) override {
            pass_->start(rows, ids, count);
            counts_.push_back(count);
        }
        PassedBlock finish() override {
            if (counts_.empty()) throw DeviceFailure("that was too fast", false);
            PassedBlock passed;
            for (size_t i = 0; i < counts_.size(); ++i) passed = pass_->finish();
            passed.count = counts_.front();
            counts_.clear();
            return passed;
        }
        void nearest(Neighbor* out) override { pass_->nearest(out); }

      private:
        std::unique_ptr<RowPass> pass_;
        std::vector<size_t> counts_;
    };
};

TEST(RowPass, SearchesNoBlockTwiceAfterAFailure) {
    std::mt19937 random(test_seed());
    constexpr uint32_t dims = 8, queries = 3, k = 20;
    constexpr size_t rows = 90, block = 30;
    std::vector<float> all(rows * dims);
    std::normal_distribution<float> normal;
    for (float& x : all) x = normal(random);
    std::vector<uint64_t> ids(rows);
    std::iota(ids.begin(), ids.end(), uint64_t{1});

    FallbackExecutor executor(std::make_unique<HastyDevice>(), cpu, cpu);
    RowPassInput input;
    input.dims = dims;
    input.block_rows = block;
    input.queries = all.data();
    input.query_count = queries;
    input.k = k;
    const auto pass = executor.begin_pass(input);
    for (size_t first = 0; first < rows; first += block)
        pass->start(all.data() + first * dims, ids.data() + first, block);
    for (size_t first = 0; first < rows; first += block) EXPECT_EQ(pass->finish().count, block);
    EXPECT_FALSE(executor.failure().empty());
    std::vector<Neighbor> found(queries * k);
    pass->nearest(found.data());

    std::vector<Neighbor> expected(queries * k, {std::numeric_limits<float>::infinity(), 0});
    cpu()->exact_search(
        {all.data(), queries, all.data(), rows, ids.data(), dims, Metric::l2, k, expected.data()});
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].id, expected[i].id) << i;
}

TEST(RowPass, GoesOnAfterAnInterrupt) {
    std::mt19937 random(test_seed());
    PassCase c;
    c.rows = 400;
    c.block_rows = 400;
    const PassData data(c, random);
    const PassResults expected = expected_pass(c, data);
    volatile std::sig_atomic_t interrupt = 0;
    const auto executor = make_cpu_executor(1, &interrupt);
    const Quantizer quantizer = data.quantizer(c);
    const RowPassInput input = pass_input(c, data, quantizer);
    const auto pass = executor->begin_pass(input);
    pass->start(data.rows.data(), data.ids.data(), c.rows);
    interrupt = 1;
    EXPECT_THROW(pass->finish(), Interrupted);
    interrupt = 0;
    const PassedBlock block = pass->finish();
    EXPECT_TRUE(std::equal(block.lists, block.lists + block.count, expected.lists.begin()));
    std::vector<Neighbor> nearest(c.found());
    pass->nearest(nearest.data());
    expect_same_neighbors(c, nearest, expected.nearest);
}

TEST(RowPass, RefusesWhatItHasNoRoomFor) {
    RowPassInput input;
    input.dims = 4;
    input.block_rows = 10;
    const auto executor = cpu();
    const auto pass = executor->begin_pass(input);
    const std::vector<float> rows(44);
    const std::vector<uint64_t> ids(11);
    EXPECT_THROW(pass->finish(), std::logic_error);
    EXPECT_THROW(pass->start(rows.data(), ids.data(), 11), std::invalid_argument);
    pass->start(rows.data(), ids.data(), 10);
    for (size_t i = 1; i < RowPass::max_in_flight; ++i) pass->start(rows.data(), ids.data(), 1);
    EXPECT_THROW(pass->start(rows.data(), ids.data(), 1), std::logic_error);
    EXPECT_EQ(pass->finish().count, 10u);
    EXPECT_EQ(pass->finish().count, 1u);
}

TEST(DatasetBuilder, PutsPartsInOrder) {
    std::mt19937 random(test_seed());
    const uint32_t dims = 3;
    std::vector<float> rows(300 * dims);
    for (float& x : rows) x = static_cast<float>(random() % 1000);
    std::vector<float16> halves(rows.size());
    EXPECT_TRUE(to_float16s(rows.data(), rows.size(), halves.data()));
    const auto device = make_stand_in_device(1, size_t{1} << 30);
    const auto executor = device->make_executor();
    for (const RowElements elements : {RowElements::float32, RowElements::float16}) {
        const auto builder = executor->build_dataset(dims, 300, elements);
        for (const size_t part : {2, 0, 5, 1, 4, 3}) {
            const size_t first = part * 50 * dims;
            if (elements == RowElements::float16)
                builder->add(part * 10, halves.data() + first, 50);
            else
                builder->add(part * 10, rows.data() + first, 50);
        }
        EXPECT_EQ(builder->count(), 300u);
        EXPECT_THROW(builder->add(99, rows.data(), 1), std::length_error);
        const auto built = builder->finish(), taken = executor->take(rows.data(), 300, dims);
        std::vector<float> a(20 * dims), b(20 * dims);
        executor->kmeans_start(*built, 20, 7, a.data());
        executor->kmeans_start(*taken, 20, 7, b.data());
        EXPECT_EQ(a, b);
    }
}

}  // namespace
}  // namespace pgwarp
