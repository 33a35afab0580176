// Sums run along the vectors: four rows with four others keep sixteen vectors of sums in registers.
// Each load serves four of them, and nothing has to be transposed. Long vectors are processed in
// pieces, so that the rows of a tile stay in the L1 cache.

#include "kernels/cpu/graph_tile.h"

#include "kernels/distance.h"

#include <algorithm>
#include <cstring>

// This file uses arrays of vectors, which scalable vectors do not allow.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/graph_tile.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/cache_control.h>

#ifndef PGWARP_GRAPH_TILE_COMMON
#define PGWARP_GRAPH_TILE_COMMON
namespace pgwarp {
constexpr size_t padded_to = 16;              // floats: a whole number of vectors on any target
constexpr size_t first_cache_floats = 10240;  // 40 kB of an L1 cache of 64 or 48 kB
struct TileFunctions {
    void (*values)(const TileRectangle&);
    float (*gather)(const float*, const float*, size_t, size_t, float*);
};
}  // namespace pgwarp
#endif

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;

#if HWY_TARGET == HWY_NEON || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr size_t kRows = 4;  // with four others: 16 of 32 registers
#else
constexpr size_t kRows = 2;  // 8 of 16
#endif
constexpr size_t kColumns = 4;

struct Product {
    static HWY_INLINE Floats add(Floats sum, Floats a, Floats b) { return hn::MulAdd(a, b, sum); }
};
struct AbsoluteDifference {
    static HWY_INLINE Floats add(Floats sum, Floats a, Floats b) {
        return hn::Add(sum, hn::AbsDiff(a, b));
    }
};

// Adds the four lane sums to out[0 .. 3], or stores them there.
HWY_INLINE void store_sums(Floats s0, Floats s1, Floats s2, Floats s3, float factor, bool add,
                           float* HWY_RESTRICT out) {
    const FloatTag df;
#if HWY_TARGET == HWY_SCALAR
    const float four[kColumns] = {hn::GetLane(s0), hn::GetLane(s1), hn::GetLane(s2),
                                  hn::GetLane(s3)};
#else
    // In each block of four lanes: (s0, s1, s0, s1), (s2, s3, s2, s3), then all four.
    const Floats low = hn::Add(hn::InterleaveLower(df, s0, s1), hn::InterleaveUpper(df, s0, s1));
    const Floats high = hn::Add(hn::InterleaveLower(df, s2, s3), hn::InterleaveUpper(df, s2, s3));
    const hn::Repartition<double, FloatTag> dd;
    const auto low_pairs = hn::BitCast(dd, low), high_pairs = hn::BitCast(dd, high);
    const Floats all = hn::Add(hn::BitCast(df, hn::InterleaveLower(dd, low_pairs, high_pairs)),
                               hn::BitCast(df, hn::InterleaveUpper(dd, low_pairs, high_pairs)));
    HWY_ALIGN float lanes[hn::MaxLanes(FloatTag())];
    hn::Store(all, df, lanes);
    float four[kColumns] = {lanes[0], lanes[1], lanes[2], lanes[3]};
    for (size_t i = kColumns; i < hn::Lanes(df); ++i) four[i % kColumns] += lanes[i];
#endif
    for (size_t c = 0; c < kColumns; ++c)
        out[c] = add ? out[c] + factor * four[c] : factor * four[c];
}

template <class Step>
HWY_INLINE void block(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, size_t stride,
                      size_t dims, float factor, bool add, float* HWY_RESTRICT out,
                      size_t out_stride) {
    const FloatTag df;
    const size_t lanes = hn::Lanes(df);
    Floats sums[kRows][kColumns];
    for (size_t r = 0; r < kRows; ++r)
        for (size_t c = 0; c < kColumns; ++c) sums[r][c] = hn::Zero(df);
    for (size_t d = 0; d < dims; d += lanes) {
        Floats of_b[kColumns];
        for (size_t c = 0; c < kColumns; ++c) of_b[c] = hn::LoadU(df, b + c * stride + d);
        for (size_t r = 0; r < kRows; ++r) {
            const Floats of_a = hn::LoadU(df, a + r * stride + d);
            for (size_t c = 0; c < kColumns; ++c) sums[r][c] = Step::add(sums[r][c], of_a, of_b[c]);
        }
    }
    for (size_t r = 0; r < kRows; ++r)
        store_sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3], factor, add,
                   out + r * out_stride);
}

template <class Step>
void values_of(const TileRectangle& t, float factor) {
    const size_t rows = t.triangle ? t.b_rows : t.a_rows + t.b_rows;
    size_t piece = first_cache_floats / std::max<size_t>(rows, 1) / padded_to * padded_to;
    piece = std::max<size_t>(piece, 4 * padded_to);
    for (size_t first = 0; first < t.stride; first += piece) {
        const size_t dims = std::min(piece, t.stride - first);
        for (size_t a = 0; a < t.a_rows; a += kRows)
            for (size_t b = t.triangle ? a / kColumns * kColumns : 0; b < t.b_rows; b += kColumns)
                block<Step>(t.a + a * t.stride + first, t.b + b * t.stride + first, t.stride, dims,
                            factor, first > 0, t.out + a * t.out_stride + b, t.out_stride);
    }
}

void Values(const TileRectangle& t) {
    switch (t.metric) {
        case Metric::l2:
            return values_of<Product>(t, -2);
        case Metric::cosine:
        case Metric::inner_product:
            return values_of<Product>(t, -1);
        case Metric::l1:
            return values_of<AbsoluteDifference>(t, 1);
    }
}

// Writes row - centre; returns its squared norm.
float Gather(const float* HWY_RESTRICT row, const float* HWY_RESTRICT centre, size_t dims,
             size_t stride, float* HWY_RESTRICT to) {
    const FloatTag df;
    const size_t lanes = hn::Lanes(df);
    Floats sum0 = hn::Zero(df), sum1 = hn::Zero(df);
    size_t d = 0;
    for (; d + 2 * lanes <= dims; d += 2 * lanes) {
        const Floats x0 = hn::Sub(hn::LoadU(df, row + d), hn::LoadU(df, centre + d));
        const Floats x1 =
            hn::Sub(hn::LoadU(df, row + d + lanes), hn::LoadU(df, centre + d + lanes));
        hn::StoreU(x0, df, to + d);
        hn::StoreU(x1, df, to + d + lanes);
        sum0 = hn::MulAdd(x0, x0, sum0);
        sum1 = hn::MulAdd(x1, x1, sum1);
    }
    float sum = hn::GetLane(hn::SumOfLanes(df, hn::Add(sum0, sum1)));
    for (; d < dims; ++d) {
        to[d] = row[d] - centre[d];
        sum += to[d] * to[d];
    }
    std::memset(to + dims, 0, (stride - dims) * sizeof(float));
    return sum;
}

}  // namespace

TileFunctions tile_functions() {
    return {Values, Gather};
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(tile_functions);

namespace {
TileFunctions chosen = HWY_DYNAMIC_DISPATCH(tile_functions)();

// Prefetches a row while the row before it is copied.
void prefetch_row(const float* row, uint32_t dims) {
    for (size_t d = 0; d < dims; d += 64 / sizeof(float)) hwy::Prefetch(row + d);
}
}  // namespace

void choose_tile_target() {
    // Only scalable targets enabled: keep the current choice, since such a machine has NEON too.
    if ((hwy::SupportedTargets() & HWY_TARGETS) != 0)
        chosen = HWY_DYNAMIC_DISPATCH(tile_functions)();
}

size_t tile_stride(uint32_t dims) {
    return (dims + padded_to - 1) / padded_to * padded_to;
}

void gather_tile(const GraphRows& rows, const uint32_t* numbers, size_t count, const float* centre,
                 float* data, float* terms) {
    const size_t stride = tile_stride(rows.dims);
    const bool centred = has_norms(rows.metric);
    for (size_t i = 0; i < count; ++i) {
        if (i + 1 < count) prefetch_row(rows.row(numbers[i + 1]), rows.dims);
        float* to = data + i * stride;
        if (centred) {
            const float squared =
                chosen.gather(rows.row(numbers[i]), centre, rows.dims, stride, to);
            terms[i] = rows.metric == Metric::l2 ? squared : squared / 2;
        } else {
            std::memcpy(to, rows.row(numbers[i]), rows.dims * sizeof(float));
            std::memset(to + rows.dims, 0, (stride - rows.dims) * sizeof(float));
            terms[i] = 0;
        }
    }
    const size_t whole = (count + 3) / 4 * 4;
    std::memset(data + count * stride, 0, (whole - count) * stride * sizeof(float));
}

void tile_values(const TileRectangle& rectangle) {
    chosen.values(rectangle);
}

float graph_distance(Metric metric, const float* a, const float* b, uint32_t dims) noexcept {
    switch (metric) {
        case Metric::l2:
            return squared_l2_distance(a, b, dims);
        case Metric::inner_product:
            return -dot_product(a, b, dims);
        case Metric::cosine:
            return squared_l2_distance(a, b, dims) / 2;
        case Metric::l1:
            return l1_distance(a, b, dims);
    }
    return 0;
}

}  // namespace pgwarp
#endif
