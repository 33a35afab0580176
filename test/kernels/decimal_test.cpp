// Whatever parse_plain_decimal decides must be what strtof decides, to the last bit and character.

#include "kernels/decimal.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

class Decimal : public testing::Test {
  protected:
    // True where the fast path took the text.
    bool agrees(const std::string& text) {
        float value = 0;
        const char* start = text.c_str();
        const char* end = parse_plain_decimal(start, start + text.size(), &value);
        if (end == nullptr) return false;
        char* expected_end;
        const float expected = std::strtof(start, &expected_end);
        EXPECT_EQ(end, expected_end) << text;
        EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(expected)) << text;
        return true;
    }

    float any_float() {
        for (;;) {
            const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
            if (std::isfinite(value)) return value;
        }
    }

    std::mt19937 random{test_seed()};
};

std::string shortest(auto value) {
    char buffer[64];
    return std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
}

// Separated by spaces, so that a line of them reads as one.
std::vector<std::string> words(const std::string& text) {
    std::istringstream stream(text);
    return {std::istream_iterator<std::string>(stream), {}};
}

TEST_F(Decimal, TakesWhatVectorsAreWrittenIn) {
    for (const std::string& text : words("0 1 255 -1 +1 0.5 -0.5 .5 5. -0 -0.0 0e9999 1e5 1E5 1e+5 "
                                         "1e-5 0.123456789 -1.2345678e-05 0.12345678901234567 "
                                         "0.00000000000000000000000001 12345678901234567.89 "
                                         "00000000000000000000000001 1,2 1] 1.5f 1.5-")) {
        EXPECT_TRUE(agrees(text)) << text;
    }
}

TEST_F(Decimal, LeavesTheUnusualToStrtof) {
    for (const std::string& text :
         words("- + . -. e5 inf -inf nan NaN(1) 0x10 -0X1p3 1e 1e+ 1e99999 1e39 3.4028235e38 "
               "3.4028236e38 1.1754944e-38 1e-39 1e-46 16777217 12345678901234567890 "
               "0.12345678901234567891 hello ] ++1 --1")) {
        EXPECT_FALSE(agrees(text)) << text;
    }
    EXPECT_FALSE(agrees(""));
    EXPECT_FALSE(agrees(" 1"));
}

TEST_F(Decimal, ShortestFormsRoundTrip) {
    int taken = 0;
    const int rounds = 300000;
    std::normal_distribution<double> usual(0, 0.1);
    for (int i = 0; i < rounds; i++) {
        agrees(shortest(any_float()));
        taken += agrees(shortest(usual(random)));
        taken += agrees(shortest(static_cast<float>(usual(random))));
    }
    EXPECT_GT(taken, 2 * rounds * 0.999);
}

// Numbers on, or a few digits beside, the middle between two floats: where double rounding errs.
TEST_F(Decimal, MiddlesBetweenFloats) {
    std::uniform_int_distribution<int> precision(7, 19);
    for (int i = 0; i < 300000; i++) {
        float low = any_float();
        if (i % 2) low = std::ldexp(1 + static_cast<float>(random() >> 9) * 0x1p-23f, i % 40 - 20);
        const double high = std::nextafter(low, std::numeric_limits<float>::infinity());
        const double middle = (low + high) / 2;
        char text[64];
        std::snprintf(text, sizeof(text), "%.*e", precision(random) - 1, middle);
        agrees(text);
        std::snprintf(text, sizeof(text), "%.*f", precision(random), middle);
        agrees(text);
    }
}

TEST_F(Decimal, RandomCharacters) {
    const std::string alphabet = "0123456789012345678900000.....-+eExXpinfa ,]";
    std::uniform_int_distribution<size_t> letter(0, alphabet.size() - 1), length(1, 30);
    int taken = 0;
    for (int i = 0; i < 500000; i++) {
        std::string text;
        for (size_t j = length(random); j > 0; j--) text += alphabet[letter(random)];
        taken += agrees(text);
    }
    EXPECT_GT(taken, 1000);
}

}  // namespace
}  // namespace pgwarp
