// Sorts that end when they are interrupted.

#include "kernels/polling_order.h"

#include "kernels/neighbor_graph.h"
#include "kernels/workers.h"

#include <algorithm>
#include <csignal>
#include <functional>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

TEST(PollingOrder, SortsOrThrows) {
    std::mt19937 random(test_seed());
    std::vector<uint32_t> values(100000);
    for (uint32_t& value : values) value = static_cast<uint32_t>(random());
    volatile std::sig_atomic_t flag = 0;
    PollingOrder order(Interrupts{&flag}, std::greater<uint32_t>());
    std::vector<uint32_t> sorted = values;
    std::sort(sorted.begin(), sorted.end(), std::ref(order));
    EXPECT_TRUE(std::is_sorted(sorted.begin(), sorted.end(), std::greater<uint32_t>()));
    flag = 1;
    EXPECT_THROW(std::sort(values.begin(), values.end(), std::ref(order)), Interrupted);
}

}  // namespace
}  // namespace pgwarp
