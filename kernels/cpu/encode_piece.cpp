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

// Vectors of codewords taken at once: with four rows, as many sums as fit into registers beside the
// operands. (x86 has 32 registers from AVX-512 on, Arm always.)
constexpr size_t kVectors = HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3 ? 2 : 4;

// Keeps the smallest scores so far of one row, by lane, and their indexes.
HWY_INLINE void Keep(Floats score, Indexes at, Floats& value, Indexes& index) {
    const IndexTag du;
    const auto less = hn::Lt(score, value);
    value = hn::IfThenElse(less, score, value);
    index = hn::IfThenElse(hn::RebindMask(du, less), at, index);
}

HWY_INLINE uint8_t LowestOfMinima(Floats value, Indexes index) {
    const FloatTag df;
    const IndexTag du;
    const auto least = hn::Eq(value, hn::MinOfLanes(df, value));
    const Indexes lowest = hn::IfThenElse(hn::RebindMask(du, least), index, hn::Set(du, 255));
    return static_cast<uint8_t>(hn::GetLane(hn::MinOfLanes(du, lowest)));
}

// Pieces up to this length have their elements broadcast to vectors once for all codewords;
// repeated broadcasts would compete with multiplications.
constexpr uint32_t kMostSpread = 32;

// Ranks by |w|^2 / 2 - <x, w>, which has the order of |x - w|^2. Four rows are taken at a time, so
// that each loaded codeword serves four rows.
template <size_t kRows, bool kSpread>
HWY_INLINE void EncodeRows(const PieceEncoding& e, size_t first) {
    static_assert(kRows == 1 || kRows == 4);
    static_assert(kVectors == 2 || kVectors == 4);
    const FloatTag df;
    const IndexTag du;
    const size_t lanes = hn::Lanes(df);
    const float* pieces = e.pieces + first * e.stride;
    HWY_ALIGN float spread[kSpread ? kMostSpread * kRows * hn::MaxLanes(FloatTag()) : 1];
    if constexpr (kSpread) {
        for (uint32_t d = 0; d < e.piece_dims; ++d)
            for (size_t row = 0; row < kRows; ++row)
                hn::Store(hn::Set(df, pieces[row * e.stride + d]), df,
                          spread + (d * kRows + row) * lanes);
    }
    const auto element = [&](size_t row, uint32_t d) HWY_ATTR {
        if constexpr (kSpread)
            return hn::Load(df, spread + (d * kRows + row) * lanes);
        else
            return hn::Set(df, pieces[row * e.stride + d]);
    };

    const Floats far = hn::Set(df, hwy::HighestValue<float>());
    Floats value0 = far, value1 = far, value2 = far, value3 = far;
    Indexes index0 = hn::Zero(du), index1 = index0, index2 = index0, index3 = index0;
    const Indexes step = hn::Set(du, static_cast<uint32_t>(lanes));
    Indexes at = hn::Iota(du, 0);

    for (size_t c = 0; c < codewords; c += kVectors * lanes) {
        // Sums of the vectors a to d of codewords, for the rows 0 to 3.
        Floats a0 = hn::LoadU(df, e.half_norms + c), a1 = a0, a2 = a0, a3 = a0;
        Floats b0 = hn::LoadU(df, e.half_norms + c + lanes), b1 = b0, b2 = b0, b3 = b0;
        Floats c0 = far, c1 = far, c2 = far, c3 = far, d0 = far, d1 = far, d2 = far, d3 = far;
        if constexpr (kVectors > 2) {
            c0 = c1 = c2 = c3 = hn::LoadU(df, e.half_norms + c + 2 * lanes);
            d0 = d1 = d2 = d3 = hn::LoadU(df, e.half_norms + c + 3 * lanes);
        }
        const float* words = e.codebook + c;
        for (uint32_t d = 0; d < e.piece_dims; ++d, words += codewords) {
            const Floats wa = hn::LoadU(df, words), wb = hn::LoadU(df, words + lanes);
            const Floats wc = kVectors > 2 ? hn::LoadU(df, words + 2 * lanes) : wa;
            const Floats wd = kVectors > 2 ? hn::LoadU(df, words + 3 * lanes) : wa;
            const auto add = [&](Floats x, Floats& a, Floats& b, Floats& c, Floats& d) HWY_ATTR {
                a = hn::NegMulAdd(x, wa, a);
                b = hn::NegMulAdd(x, wb, b);
                if constexpr (kVectors > 2) {
                    c = hn::NegMulAdd(x, wc, c);
                    d = hn::NegMulAdd(x, wd, d);
                }
            };
            add(element(0, d), a0, b0, c0, d0);
            if constexpr (kRows > 1) {
                add(element(1, d), a1, b1, c1, d1);
                add(element(2, d), a2, b2, c2, d2);
                add(element(3, d), a3, b3, c3, d3);
            }
        }
        const auto keep = [&](Floats s0, Floats s1, Floats s2, Floats s3) HWY_ATTR {
            Keep(s0, at, value0, index0);
            if constexpr (kRows > 1) {
                Keep(s1, at, value1, index1);
                Keep(s2, at, value2, index2);
                Keep(s3, at, value3, index3);
            }
            at = hn::Add(at, step);
        };
        keep(a0, a1, a2, a3);
        keep(b0, b1, b2, b3);
        if constexpr (kVectors > 2) {
            keep(c0, c1, c2, c3);
            keep(d0, d1, d2, d3);
        }
    }
    uint8_t* out = e.codes + first * e.code_stride;
    out[0] = LowestOfMinima(value0, index0);
    if constexpr (kRows > 1) {
        out[e.code_stride] = LowestOfMinima(value1, index1);
        out[2 * e.code_stride] = LowestOfMinima(value2, index2);
        out[3 * e.code_stride] = LowestOfMinima(value3, index3);
    }
}

template <bool kSpread>
HWY_INLINE void EncodeAllRows(const PieceEncoding& e) {
    size_t i = 0;
    for (; i + 4 <= e.count; i += 4) EncodeRows<4, kSpread>(e, i);
    for (; i < e.count; ++i) EncodeRows<1, kSpread>(e, i);
}

void EncodePiece(const PieceEncoding& e) {
    if (e.piece_dims <= kMostSpread)
        EncodeAllRows<true>(e);
    else
        EncodeAllRows<false>(e);
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
