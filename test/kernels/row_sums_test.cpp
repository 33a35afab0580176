// Searching the sums of two rows, which is what is left to do beside matrix products: the lowest
// sum, and the next that is low enough. Against plain loops, with nothing readable behind the rows.

#include "kernels/cpu/argmin.h"
#include "kernels/cpu/filter.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/guarded.h"
#include "test/kernels/reference.h"

namespace pgwarp {
namespace {

class RowSums : public EveryTarget {
  protected:
    // Few different values, so that sums tie.
    void fill(Guarded<float>& row) {
        const std::vector<float> values = whole_floats(random, row.size(), 4);
        std::copy(values.begin(), values.end(), row.begin());
    }
};

TEST_P(RowSums, TheLowestOfTheLowest) {
    for (int i = 0; i < 3; ++i)
        for (uint32_t count = 1; count <= 300; ++count) {
            Guarded<float> a(count), b(count);
            fill(a);
            fill(b);
            uint32_t best = 0;
            for (uint32_t at = 1; at < count; ++at)
                if (a[at] + b[at] < a[best] + b[best]) best = at;
            const Nearest found = argmin_sum(a.data(), b.data(), count);
            ASSERT_EQ(found.index, best) << count;
            ASSERT_EQ(found.value, a[best] + b[best]) << count;
        }
}

// One low sum, at every place: no lane and no step may be left out.
TEST_P(RowSums, TheLowestAtEveryPlace) {
    for (const uint32_t count : {1, 3, 4, 15, 16, 17, 63, 64, 65, 150}) {
        Guarded<float> a(count), b(count);
        for (uint32_t at = 0; at < count; ++at) {
            b[at] = -1;
            const Nearest found = argmin_sum(a.data(), b.data(), count);
            EXPECT_EQ(found.index, at) << count;
            EXPECT_EQ(found.value, -1);
            b[at] = 0;
        }
    }
}

TEST_P(RowSums, EveryOneThatIsNotAbove) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (size_t count = 0; count <= 200; ++count)
        for (const float limit : {-6.0f, -1.0f, 3.0f, 100.0f, infinity, -infinity}) {
            Guarded<float> a(count), b(count);
            fill(a);
            fill(b);
            for (size_t at = 0; at < count; ++at)
                if (between(random, 0, 30) == 0) {
                    a[at] = between(random, 0, 1) ? -infinity : infinity;
                    b[at] = infinity;
                }
            std::vector<size_t> expected, found;
            for (size_t at = 0; at < count; ++at)
                if (!(a[at] + b[at] > limit)) expected.push_back(at);
            for (size_t at = 0;; ++at) {
                at = next_at_most(a.data(), b.data(), at, count, limit);
                ASSERT_LE(at, count);
                if (at == count) break;
                found.push_back(at);
            }
            ASSERT_EQ(found, expected) << count << " sums, limit " << limit;
        }
}

PGWARP_EVERY_TARGET(RowSums);

}  // namespace
}  // namespace pgwarp
