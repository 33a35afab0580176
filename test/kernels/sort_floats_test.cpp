#include "kernels/sort_floats.h"
#include "kernels/random.h"
#include "test/kernels/guarded.h"
#include "test/kernels/seed.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

namespace pgwarp {
namespace {

// The values end at a page that cannot be read.
TEST(SortFloatsTest, SortsAsTheStandardLibraryDoes) {
    Random random(test_seed());
    for (size_t count : {0, 1, 2, 3, 15, 16, 17, 255, 1000, 1500, 24001})
        for (uint64_t different : {uint64_t{2}, uint64_t{100}, uint64_t{1} << 40}) {
            Guarded<float> values(count);
            for (float& value : values)
                value = static_cast<float>(random.below(different)) - 1000.5f;
            if (count > 2) values.data()[count / 2] = -std::numeric_limits<float>::infinity();
            std::vector<float> expected(values.begin(), values.end());
            std::sort(expected.begin(), expected.end());
            sort_floats(values.data(), count);
            ASSERT_TRUE(std::equal(expected.begin(), expected.end(), values.begin()))
                << count << " values";
        }
}

}  // namespace
}  // namespace pgwarp
