// Inner products of tiles against float64, on every instruction set.

#include "kernels/cpu/products.h"

#include "test/kernels/every_target.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace pgwarp {
namespace {

struct Shape {
    size_t a_rows, b_rows, dims;
};

void check(const Shape& shape, std::mt19937& random) {
    std::normal_distribution<float> normal;
    std::vector<float> a(shape.a_rows * shape.dims);
    std::vector<float> b(shape.b_rows * shape.dims);
    for (float& value : a) value = normal(random);
    for (float& value : b) value = normal(random);
    std::vector<float> out(shape.a_rows * shape.b_rows + 1, -12345.0f);
    std::vector<float> scratch(products_scratch(shape.a_rows));
    inner_products({a.data(), shape.a_rows, b.data(), shape.b_rows, shape.dims, -2.0f, out.data()},
                   scratch.data());
    for (size_t i = 0; i < shape.a_rows; ++i)
        for (size_t j = 0; j < shape.b_rows; ++j) {
            double exact = 0;
            double size = 0;
            for (size_t d = 0; d < shape.dims; ++d) {
                const double product = double{a[i * shape.dims + d]} * b[j * shape.dims + d];
                exact -= 2 * product;
                size += std::fabs(2 * product);
            }
            ASSERT_NEAR(out[i * shape.b_rows + j], exact, 1e-6 * size + 1e-12)
                << "row " << i << ", column " << j << " of " << shape.a_rows << " x "
                << shape.b_rows << " x " << shape.dims;
        }
    EXPECT_EQ(out.back(), -12345.0f) << "wrote behind the end";
}

class ProductsTest : public EveryTarget {
  protected:
    void SetUp() override {
        EveryTarget::SetUp();
        choose_products_target();
    }
    void TearDown() override {
        EveryTarget::TearDown();
        choose_products_target();
    }
};
PGWARP_EVERY_TARGET(ProductsTest);

TEST_P(ProductsTest, MatchFloat64) {
    for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{8, 24, 256}, Shape{9, 25, 257},
                               Shape{64, 33, 100}, Shape{127, 49, 513}})
        check(shape, random);
    std::uniform_int_distribution<size_t> rows(1, 80);
    std::uniform_int_distribution<size_t> dims(1, 600);
    for (int i = 0; i < 10; ++i) check({rows(random), rows(random), dims(random)}, random);
}

TEST_P(ProductsTest, DependOnNothingAround) {
    std::normal_distribution<float> normal;
    constexpr size_t a_rows = 37, b_rows = 61, dims = 300;
    std::vector<float> a(a_rows * dims), b(b_rows * dims);
    for (float& value : a) value = normal(random);
    for (float& value : b) value = normal(random);
    std::vector<float> all(a_rows * b_rows);
    std::vector<float> scratch(products_scratch(a_rows));
    inner_products({a.data(), a_rows, b.data(), b_rows, dims, 1, all.data()}, scratch.data());
    for (const size_t i : {size_t{0}, size_t{8}, size_t{36}})
        for (const size_t j : {size_t{0}, size_t{23}, size_t{60}}) {
            float alone;
            inner_products({a.data() + i * dims, 1, b.data() + j * dims, 1, dims, 1, &alone},
                           scratch.data());
            EXPECT_EQ(alone, all[i * b_rows + j]);
        }
}

}  // namespace
}  // namespace pgwarp
