#include "kernels/cpu/encode_piece.h"

#include "kernels/product_quantizer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/encode_piece.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using IndexTag = hn::RebindToUnsigned<FloatTag>;
using Floats = hn::Vec<FloatTag>;
using Indexes = hn::Vec<IndexTag>;

HWY_INLINE uint8_t LowestOfMinima(Floats value, Indexes index) {
    const FloatTag df;
    const IndexTag du;
    HWY_ALIGN float values[HWY_MAX_BYTES / sizeof(float)];
    HWY_ALIGN uint32_t indexes[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(value, df, values);
    hn::Store(index, du, indexes);
    uint32_t best = indexes[0];
    float least = values[0];
    for (size_t l = 1; l < hn::Lanes(df); ++l)
        if (values[l] < least || (values[l] == least && indexes[l] < best)) {
            least = values[l];
            best = indexes[l];
        }
    return static_cast<uint8_t>(best);
}

// Four rows at a time, so that a loaded codeword serves four times. Ranked by
// |w|^2 / 2 - <x, w>, which orders as |x - w|^2 does.
template <size_t kRows>
HWY_INLINE void EncodeRows(const PieceEncoding& e, size_t first) {
    static_assert(kRows == 1 || kRows == 4);
    const FloatTag df;
    const IndexTag du;
    const size_t lanes = hn::Lanes(df);
    const float* x0 = e.pieces + first * e.stride;
    const float* x1 = kRows > 1 ? x0 + e.stride : x0;
    const float* x2 = kRows > 1 ? x1 + e.stride : x0;
    const float* x3 = kRows > 1 ? x2 + e.stride : x0;

    const Floats far = hn::Set(df, hwy::HighestValue<float>());
    Floats value0 = far, value1 = far, value2 = far, value3 = far;
    Indexes index0 = hn::Zero(du), index1 = index0, index2 = index0, index3 = index0;
    Indexes at = hn::Iota(du, 0);
    const Indexes step = hn::Set(du, static_cast<uint32_t>(lanes));

    for (size_t c = 0; c < codewords; c += lanes) {
        const Floats norms = hn::LoadU(df, e.half_norms + c);
        Floats score0 = norms, score1 = norms, score2 = norms, score3 = norms;
        for (uint32_t d = 0; d < e.piece_dims; ++d) {
            const Floats w = hn::LoadU(df, e.codebook + size_t{d} * codewords + c);
            score0 = hn::NegMulAdd(hn::Set(df, x0[d]), w, score0);
            if constexpr (kRows > 1) {
                score1 = hn::NegMulAdd(hn::Set(df, x1[d]), w, score1);
                score2 = hn::NegMulAdd(hn::Set(df, x2[d]), w, score2);
                score3 = hn::NegMulAdd(hn::Set(df, x3[d]), w, score3);
            }
        }
        const auto keep = [&](Floats score, Floats& value, Indexes& index) HWY_ATTR {
            const auto less = hn::Lt(score, value);
            value = hn::IfThenElse(less, score, value);
            index = hn::IfThenElse(hn::RebindMask(du, less), at, index);
        };
        keep(score0, value0, index0);
        if constexpr (kRows > 1) {
            keep(score1, value1, index1);
            keep(score2, value2, index2);
            keep(score3, value3, index3);
        }
        at = hn::Add(at, step);
    }
    uint8_t* out = e.codes + first * e.code_stride;
    out[0] = LowestOfMinima(value0, index0);
    if constexpr (kRows > 1) {
        out[e.code_stride] = LowestOfMinima(value1, index1);
        out[2 * e.code_stride] = LowestOfMinima(value2, index2);
        out[3 * e.code_stride] = LowestOfMinima(value3, index3);
    }
}

void EncodePiece(const PieceEncoding& e) {
    size_t i = 0;
    for (; i + 4 <= e.count; i += 4) EncodeRows<4>(e, i);
    for (; i < e.count; ++i) EncodeRows<1>(e, i);
}

void AddRow(float residual, float centroid, const float* HWY_RESTRICT row,
            float* HWY_RESTRICT scores, float* HWY_RESTRICT offsets) {
    const FloatTag df;
    const Floats r = hn::Set(df, residual);
    const Floats twice = hn::Set(df, 2 * centroid);
    const Floats half = hn::Set(df, 0.5f);
    for (size_t c = 0; c < codewords; c += hn::Lanes(df)) {
        const Floats w = hn::LoadU(df, row + c);
        const Floats score = hn::LoadU(df, scores + c);
        const Floats offset = hn::LoadU(df, offsets + c);
        hn::StoreU(hn::MulAdd(w, hn::MulSub(half, w, r), score), df, scores + c);
        hn::StoreU(hn::MulAdd(w, hn::Add(w, twice), offset), df, offsets + c);
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(EncodePiece);
HWY_EXPORT(AddRow);

void PieceEncoder::reset() noexcept {
    for (uint32_t c = 0; c < codewords; ++c) scores_[c] = offsets_[c] = 0;
}

void PieceEncoder::add(float residual, float centroid, const float* codebook_row) noexcept {
    HWY_DYNAMIC_DISPATCH(AddRow)(residual, centroid, codebook_row, scores_, offsets_);
}

void PieceEncoder::add(float residual, float centroid, const bfloat16* codebook_row) noexcept {
    float row[codewords];
    for (uint32_t c = 0; c < codewords; ++c) row[c] = to_float(codebook_row[c]);
    add(residual, centroid, row);
}

PieceEncoder::Result PieceEncoder::finish() noexcept {
    uint32_t best = 0;
    for (uint32_t c = 1; c < codewords; ++c)
        if (scores_[c] < scores_[best]) best = c;
    const Result result{static_cast<uint8_t>(best), offsets_[best]};
    reset();
    return result;
}

void encode_piece(const PieceEncoding& encoding) {
    HWY_DYNAMIC_DISPATCH(EncodePiece)(encoding);
}

void half_norms_of(const float* codebook, uint32_t piece_dims, float* half_norms) {
    for (uint32_t c = 0; c < codewords; ++c) half_norms[c] = 0;
    for (uint32_t d = 0; d < piece_dims; ++d)
        for (uint32_t c = 0; c < codewords; ++c) {
            const float w = codebook[size_t{d} * codewords + c];
            half_norms[c] += 0.5f * w * w;
        }
}

}  // namespace pgwarp
#endif
