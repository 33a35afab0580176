// Both inputs are packed into panels first, so that the innermost loop reads memory sequentially:
// kRows rows of `a` and kColumns vectors of rows of `b`, element by element. That loop keeps kRows
// x kColumns vectors of sums in registers; the number of registers determines both. Long vectors
// are processed in pieces whose panels stay in the caches.

#include "kernels/cpu/products.h"

#include <algorithm>

// This file uses arrays of vectors, which scalable vectors do not allow.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/products.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef PGWARP_PRODUCTS_COMMON
#define PGWARP_PRODUCTS_COMMON
namespace pgwarp {
using ProductsFunction = void(const Products&, float*);
constexpr size_t piece_dims = 256;
constexpr size_t max_panel_rows = 64;  // of either side, on any target
}  // namespace pgwarp
#endif

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;

#if HWY_TARGET == HWY_NEON
constexpr size_t kRows = 8, kColumns = 2;  // 16 of 32 registers
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr size_t kRows = 8, kColumns = 3;  // 24 of 32
#else
constexpr size_t kRows = 4, kColumns = 3;  // 12 of 16
#endif

// Packs `present` rows of `from` into (dims)(panel), padded with zeros.
HWY_INLINE void pack(const float* HWY_RESTRICT from, size_t stride, size_t present, size_t panel,
                     size_t dims, float scale, float* HWY_RESTRICT to) {
    for (size_t r = 0; r < panel; ++r) {
        const float* row = from + r * stride;
        if (r < present)
            for (size_t d = 0; d < dims; ++d) to[d * panel + r] = row[d] * scale;
        else
            for (size_t d = 0; d < dims; ++d) to[d * panel + r] = 0;
    }
}

// One block of sums: kRows rows of a with kColumns vectors of rows of b. `add`: adds to `out`.
HWY_INLINE void multiply(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, size_t dims,
                         bool add, size_t rows, size_t columns, float* HWY_RESTRICT out,
                         size_t stride) {
    const FloatTag df;
    const size_t lanes = hn::Lanes(df);
    Floats sums[kRows][kColumns];
    for (size_t r = 0; r < kRows; ++r)
        for (size_t c = 0; c < kColumns; ++c) sums[r][c] = hn::Zero(df);
    for (size_t d = 0; d < dims; ++d, a += kRows, b += kColumns * lanes) {
        Floats columns_of_b[kColumns];
        for (size_t c = 0; c < kColumns; ++c) columns_of_b[c] = hn::LoadU(df, b + c * lanes);
#if HWY_TARGET == HWY_NEON
        // One load brings four rows, and the multiply-add selects its lane.
        const Floats low = hn::LoadU(df, a);
        const Floats high = hn::LoadU(df, a + 4);
        for (size_t c = 0; c < kColumns; ++c) {
            sums[0][c] = hn::MulAdd(columns_of_b[c], hn::Broadcast<0>(low), sums[0][c]);
            sums[1][c] = hn::MulAdd(columns_of_b[c], hn::Broadcast<1>(low), sums[1][c]);
            sums[2][c] = hn::MulAdd(columns_of_b[c], hn::Broadcast<2>(low), sums[2][c]);
            sums[3][c] = hn::MulAdd(columns_of_b[c], hn::Broadcast<3>(low), sums[3][c]);
            sums[4][c] = hn::MulAdd(columns_of_b[c], hn::Broadcast<0>(high), sums[4][c]);
            sums[5][c] = hn::MulAdd(columns_of_b[c], hn::Broadcast<1>(high), sums[5][c]);
            sums[6][c] = hn::MulAdd(columns_of_b[c], hn::Broadcast<2>(high), sums[6][c]);
            sums[7][c] = hn::MulAdd(columns_of_b[c], hn::Broadcast<3>(high), sums[7][c]);
        }
#else
        for (size_t r = 0; r < kRows; ++r) {
            const Floats row = hn::Set(df, a[r]);
            for (size_t c = 0; c < kColumns; ++c)
                sums[r][c] = hn::MulAdd(row, columns_of_b[c], sums[r][c]);
        }
#endif
    }
    if (rows == kRows && columns == kColumns * lanes) {
        for (size_t r = 0; r < kRows; ++r)
            for (size_t c = 0; c < kColumns; ++c) {
                float* to = out + r * stride + c * lanes;
                hn::StoreU(add ? hn::Add(sums[r][c], hn::LoadU(df, to)) : sums[r][c], df, to);
            }
        return;
    }
    // The compiler keeps sums in registers only while every index into them is a constant.
    HWY_ALIGN float block[kRows * kColumns * hn::MaxLanes(FloatTag())];
    for (size_t r = 0; r < kRows; ++r)
        for (size_t c = 0; c < kColumns; ++c)
            hn::Store(sums[r][c], df, block + (r * kColumns + c) * lanes);
    for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < columns; ++c) {
            const float sum = block[r * kColumns * lanes + c];
            out[r * stride + c] = add ? out[r * stride + c] + sum : sum;
        }
}

void InnerProducts(const Products& p, float* HWY_RESTRICT scratch) {
    const size_t columns = kColumns * hn::Lanes(FloatTag());
    float* b_panel = scratch;
    float* a_panels = scratch + piece_dims * max_panel_rows;
    for (size_t first = 0; first < p.dims; first += piece_dims) {
        const size_t dims = std::min(piece_dims, p.dims - first);
        for (size_t row = 0; row < p.a_rows; row += kRows)
            pack(p.a + row * p.dims + first, p.dims, std::min(kRows, p.a_rows - row), kRows, dims,
                 p.scale, a_panels + row * dims);
        for (size_t column = 0; column < p.b_rows; column += columns) {
            const size_t present = std::min(columns, p.b_rows - column);
            pack(p.b + column * p.dims + first, p.dims, present, columns, dims, 1, b_panel);
            for (size_t row = 0; row < p.a_rows; row += kRows)
                multiply(a_panels + row * dims, b_panel, dims, first > 0,
                         std::min(kRows, p.a_rows - row), present, p.out + row * p.b_rows + column,
                         p.b_rows);
        }
    }
}

}  // namespace

ProductsFunction* products_function() {
    return InnerProducts;
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(products_function);

namespace {
ProductsFunction* chosen = HWY_DYNAMIC_DISPATCH(products_function)();
}

void choose_products_target() {
    // Only scalable targets enabled: keep the current choice, since such a machine has NEON too.
    if ((hwy::SupportedTargets() & HWY_TARGETS) != 0)
        chosen = HWY_DYNAMIC_DISPATCH(products_function)();
}

size_t products_scratch(size_t a_rows) {
    // Panels are padded to full size, whatever that is on this machine.
    const size_t whole_rows = (a_rows + max_panel_rows - 1) / max_panel_rows * max_panel_rows;
    return piece_dims * (max_panel_rows + whole_rows);
}

void inner_products(const Products& products, float* scratch) {
    chosen(products, scratch);
}

}  // namespace pgwarp
#endif
