// Halves: every one of them against a reference made of powers of two, every rounding boundary, and
// distances of halves against those of the same values as floats.

#include "kernels/float16.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/guarded.h"

namespace pgwarp {
namespace {

constexpr uint32_t all_halves = 0x10000;
constexpr uint32_t first_infinite = 0x7c00;

float16 half(uint32_t bits) {
    return static_cast<float16>(bits);
}

double reference(uint32_t bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const auto mantissa = static_cast<double>(bits & 1023);
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 15 - 10);
    return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(Float16, EveryHalfAsAFloat) {
    for (uint32_t bits = 0; bits < all_halves; ++bits) {
        const float found = to_float(half(bits));
        const uint32_t magnitude = bits & 0x7fff;
        ASSERT_EQ(std::signbit(found), bits >= 0x8000) << bits;
        ASSERT_EQ(is_finite(half(bits)), magnitude < first_infinite) << bits;
        ASSERT_EQ(is_infinite(half(bits)), magnitude == first_infinite) << bits;
        ASSERT_EQ(is_nan(half(bits)), magnitude > first_infinite) << bits;
        ASSERT_EQ(is_zero(half(bits)), magnitude == 0) << bits;
        if (magnitude < first_infinite) {
            ASSERT_EQ(double{found}, reference(bits)) << bits;
        } else {
            ASSERT_EQ(std::isinf(found), magnitude == first_infinite) << bits;
            ASSERT_EQ(std::isnan(found), magnitude > first_infinite) << bits;
        }
    }
}

TEST(Float16, EveryHalfIsItself) {
    for (uint32_t bits = 0; bits < all_halves; ++bits) {
        if (is_nan(half(bits)))
            ASSERT_TRUE(is_nan(to_float16(to_float(half(bits))))) << bits;
        else
            ASSERT_EQ(to_float16(to_float(half(bits))), half(bits)) << bits;
    }
}

// Floats around each half and around the middle of each two, with the half that is nearest; in the
// middle, the even one. 65504 and what would follow, 65536, have a middle, too: 65520.
struct Rounding {
    float value;
    float16 expected;
};
std::vector<Rounding> boundaries() {
    std::vector<Rounding> result;
    for (uint32_t bits = 0; bits < first_infinite; ++bits) {
        const double above = bits + 1 == first_infinite ? 65536 : reference(bits + 1);
        const auto exact = static_cast<float>(reference(bits));
        const auto middle = static_cast<float>((reference(bits) + above) / 2);
        const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
        const Rounding found[] = {
            {exact, half(bits)},
            {std::nextafter(exact, std::numeric_limits<float>::infinity()), half(bits)},
            {std::nextafter(middle, 0.0f), half(bits)},
            {middle, half(even)},
            {std::nextafter(middle, std::numeric_limits<float>::infinity()), half(bits + 1)},
        };
        for (const Rounding& one : found) {
            result.push_back(one);
            result.push_back({-one.value, half(static_cast<uint32_t>(one.expected) | 0x8000)});
        }
    }
    const float most = std::numeric_limits<float>::max();
    result.push_back({most, half(0x7c00)});
    result.push_back({-most, half(0xfc00)});
    result.push_back({std::numeric_limits<float>::infinity(), half(0x7c00)});
    result.push_back({std::numeric_limits<float>::denorm_min(), half(0)});
    result.push_back({std::numeric_limits<float>::min(), half(0)});
    return result;
}

TEST(Float16, RoundsToTheNearest) {
    for (const Rounding& one : boundaries())
        ASSERT_EQ(to_float16(one.value), one.expected) << one.value;
    EXPECT_TRUE(is_nan(to_float16(std::numeric_limits<float>::quiet_NaN())));
}

class Float16Lanes : public EveryTarget {
  protected:
    void SetUp() override {
        EveryTarget::SetUp();
        choose_float16_target();
    }
    void TearDown() override {
        EveryTarget::TearDown();
        choose_float16_target();
    }
};
PGWARP_EVERY_TARGET(Float16Lanes);

TEST_P(Float16Lanes, EveryFiniteHalfAsAFloat) {
    std::vector<float16> halves;
    for (uint32_t bits = 0; bits < all_halves; ++bits)
        if (is_finite(half(bits))) halves.push_back(half(bits));
    std::vector<float> floats(halves.size());
    to_floats(halves.data(), halves.size(), floats.data());
    for (size_t i = 0; i < halves.size(); ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(to_float(halves[i])))
            << i;
}

TEST_P(Float16Lanes, RoundsToTheNearest) {
    const std::vector<Rounding> all = boundaries();
    std::vector<float> floats;
    for (const Rounding& one : all) floats.push_back(one.value);
    std::vector<float16> halves(all.size());
    EXPECT_FALSE(to_float16s(floats.data(), floats.size(), halves.data()));
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(halves[i], all[i].expected) << all[i].value;
}

// Lengths around every number of lanes, at every alignment, up to the end of a memory page.
TEST_P(Float16Lanes, AnyLengthAtAnyAddress) {
    std::uniform_int_distribution<uint32_t> any(0, first_infinite - 1);
    for (size_t count = 1; count <= 70; ++count) {
        std::vector<float16> expected(count);
        for (float16& value : expected) value = half(any(random) | (random() & 0x8000));
        for (size_t shift = 0; shift < 2; ++shift) {
            Guarded<char> bytes(count * sizeof(float16) + 1 - shift);
            char* from = bytes.data() + 1 - shift;
            std::memcpy(from, expected.data(), count * sizeof(float16));
            Guarded<float> floats(count);
            to_floats(from, count, floats.data());
            for (size_t i = 0; i < count; ++i) ASSERT_EQ(floats[i], to_float(expected[i]));
            Guarded<float16> halves(count);
            EXPECT_TRUE(to_float16s(floats.data(), count, halves.data()));
            for (size_t i = 0; i < count; ++i) ASSERT_EQ(halves[i], expected[i]);
        }
    }
}

TEST_P(Float16Lanes, TellsWhereAHalfIsNotFinite) {
    for (const float odd : {65520.0f, -65520.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()})
        for (size_t count = 1; count <= 40; ++count)
            for (size_t at = 0; at < count; ++at) {
                std::vector<float> floats(count, 1.5f);
                std::vector<float16> halves(count);
                ASSERT_TRUE(to_float16s(floats.data(), count, halves.data()));
                floats[at] = odd;
                ASSERT_FALSE(to_float16s(floats.data(), count, halves.data()));
                floats[at] = std::nextafter(65520.0f, 0.0f);
                ASSERT_TRUE(to_float16s(floats.data(), count, halves.data()));
            }
}

// The kernels' sums are checked with floats (distance_test.cpp): halves must give the same.
TEST_P(Float16Lanes, DistancesAreThoseOfFloats) {
    std::normal_distribution<float> normal(0.3f, 2);
    std::vector<size_t> lengths;
    for (size_t dims = 1; dims <= 70; ++dims) lengths.push_back(dims);
    for (size_t dims : {100, 255, 256, 257, 768, 1536, 16000}) lengths.push_back(dims);
    for (const size_t dims : lengths) {
        Guarded<float16> a(dims);
        Guarded<float16> b(dims);
        std::vector<float> wide_a(dims);
        std::vector<float> wide_b(dims);
        for (size_t i = 0; i < dims; ++i) {
            a[i] = to_float16(normal(random));
            b[i] = to_float16(normal(random) * 0x1p-14f);  // among them subnormal ones
            wide_a[i] = to_float(a[i]);
            wide_b[i] = to_float(b[i]);
        }
        const float* x = wide_a.data();
        const float* y = wide_b.data();
        const float l2 = squared_l2_distance(x, y, dims);
        EXPECT_EQ(squared_l2_distance(a.data(), b.data(), dims), l2) << dims;
        EXPECT_EQ(squared_l2_distance(x, b.data(), dims), l2) << dims;
        const float product = dot_product(x, y, dims);
        EXPECT_EQ(dot_product(a.data(), b.data(), dims), product) << dims;
        EXPECT_EQ(dot_product(x, b.data(), dims), product) << dims;
        const float l1 = l1_distance(x, y, dims);
        EXPECT_EQ(l1_distance(a.data(), b.data(), dims), l1) << dims;
        EXPECT_EQ(l1_distance(x, b.data(), dims), l1) << dims;
        const CosineParts parts = cosine_parts(x, y, dims);
        for (const CosineParts& found :
             {cosine_parts(a.data(), b.data(), dims), cosine_parts(x, b.data(), dims)}) {
            EXPECT_EQ(found.product, parts.product) << dims;
            EXPECT_EQ(found.squared_norm_a, parts.squared_norm_a) << dims;
            EXPECT_EQ(found.squared_norm_b, parts.squared_norm_b) << dims;
        }
        const double norm = squared_norm(x, dims);
        EXPECT_NEAR(squared_norm(a.data(), dims), norm, norm * 1e-12) << dims;
    }
}

}  // namespace
}  // namespace pgwarp
