#include "kernels/list_scan.h"

#include <bit>
#include <cstring>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/list_scan.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// Eight codes are read as one 64-bit number.
static_assert(std::endian::native == std::endian::little);

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;

HWY_INLINE Floats LoadFloats(const float* from) {
    return hn::LoadU(FloatTag(), from);
}

HWY_INLINE Floats LoadFloats(const bfloat16* from) {
#if HWY_TARGET == HWY_NEON
    // As in distance.cpp.
    const uint16x4_t half = vld1_u16(reinterpret_cast<const uint16_t*>(from));
    const uint16x8_t halves = vcombine_u16(half, vdup_n_u16(0));
    return Floats(vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), halves)));
#else
    const FloatTag df;
    const hn::RebindToUnsigned<FloatTag> du;
    const hn::Rebind<uint16_t, FloatTag> narrow;
    const auto bits = hn::LoadU(narrow, reinterpret_cast<const uint16_t*>(from));
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
#endif
}

// Four vectors of sums stay in registers over all rows.
template <typename Element>
HWY_INLINE void AddRows(const float* HWY_RESTRICT factors, const Element* HWY_RESTRICT rows,
                        uint32_t count, float* HWY_RESTRICT table) {
    const FloatTag df;
    const size_t lanes = hn::Lanes(df);
    for (size_t c = 0; c < codewords; c += 4 * lanes) {
        Floats sum0 = hn::LoadU(df, table + c);
        Floats sum1 = hn::LoadU(df, table + c + lanes);
        Floats sum2 = hn::LoadU(df, table + c + 2 * lanes);
        Floats sum3 = hn::LoadU(df, table + c + 3 * lanes);
        const Element* row = rows + c;
        for (uint32_t r = 0; r < count; ++r, row += codewords) {
            const Floats factor = hn::Set(df, factors[r]);
            sum0 = hn::MulAdd(factor, LoadFloats(row), sum0);
            sum1 = hn::MulAdd(factor, LoadFloats(row + lanes), sum1);
            sum2 = hn::MulAdd(factor, LoadFloats(row + 2 * lanes), sum2);
            sum3 = hn::MulAdd(factor, LoadFloats(row + 3 * lanes), sum3);
        }
        hn::StoreU(sum0, df, table + c);
        hn::StoreU(sum1, df, table + c + lanes);
        hn::StoreU(sum2, df, table + c + 2 * lanes);
        hn::StoreU(sum3, df, table + c + 3 * lanes);
    }
}

void AddFloatRows(const float* factors, const float* rows, uint32_t count, float* table) {
    AddRows(factors, rows, count, table);
}

void AddHalfRows(const float* factors, const bfloat16* rows, uint32_t count, float* table) {
    AddRows(factors, rows, count, table);
}

// Adds the look-ups of `rows` sub-quantizers to the distances of eight entries. Scalar look-ups:
// one load brings eight codes, and eight independent sums hide the latency of the adds. A gather
// instruction is no faster.
HWY_INLINE void ScanEight(const float* HWY_RESTRICT table, uint32_t rows, const uint8_t* codes,
                          size_t stride, float* HWY_RESTRICT distances) {
    float s0 = distances[0], s1 = distances[1], s2 = distances[2], s3 = distances[3];
    float s4 = distances[4], s5 = distances[5], s6 = distances[6], s7 = distances[7];
    const auto add = [&](const float* row, const uint8_t* from) HWY_ATTR {
        uint64_t eight;
        memcpy(&eight, from, 8);
        s0 += row[eight & 255];
        s1 += row[(eight >> 8) & 255];
        s2 += row[(eight >> 16) & 255];
        s3 += row[(eight >> 24) & 255];
        s4 += row[(eight >> 32) & 255];
        s5 += row[(eight >> 40) & 255];
        s6 += row[(eight >> 48) & 255];
        s7 += row[eight >> 56];
    };
    uint32_t j = 0;
    for (; j + 2 <= rows; j += 2, codes += 2 * stride, table += 2 * size_t{codewords}) {
        add(table, codes);
        add(table + codewords, codes + stride);
    }
    if (j < rows) add(table, codes);
    distances[0] = s0, distances[1] = s1, distances[2] = s2, distances[3] = s3;
    distances[4] = s4, distances[5] = s5, distances[6] = s6, distances[7] = s7;
}

// This many rows of a table, 1 kB each, stay in the L1 cache while all entries of a page are
// scanned.
constexpr uint32_t kBlockRows = 32;

void ScanCodes(const float* table, uint32_t m, const CodeColumns& columns, float list_term,
               float* distances) {
    for (uint32_t l = 0; l < columns.count; ++l) distances[l] = list_term + columns.offsets[l];
    for (uint32_t l = columns.count; l % 8 != 0; ++l) distances[l] = 0;
    const size_t stride = columns.stride;
    const uint32_t blocks = (m + kBlockRows - 1) / kBlockRows;
    for (uint32_t block = 0; block < blocks; ++block) {
        // Blocks of nearly equal size: a block of a few rows would be mostly overhead.
        const uint32_t begin = m * block / blocks, end = m * (block + 1) / blocks;
        for (uint32_t l = 0; l < columns.count; l += 8)
            ScanEight(table + size_t{begin} * codewords, end - begin,
                      columns.codes + begin * stride + l, stride, distances + l);
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(AddFloatRows);
HWY_EXPORT(AddHalfRows);
HWY_EXPORT(ScanCodes);

void add_codebook_rows(const float* factors, const float* rows, uint32_t count, float* table) {
    HWY_DYNAMIC_DISPATCH(AddFloatRows)(factors, rows, count, table);
}

void add_codebook_rows(const float* factors, const bfloat16* rows, uint32_t count, float* table) {
    HWY_DYNAMIC_DISPATCH(AddHalfRows)(factors, rows, count, table);
}

void build_table(const Quantizer& quantizer, const float* query, float* table) {
    const QuantizerShape& shape = quantizer.shape;
    memset(table, 0, size_t{shape.m} * codewords * sizeof(float));
    std::vector<float> factors(shape.dims);
    for (uint32_t d = 0; d < shape.dims; ++d) factors[d] = product_factor(shape.metric) * query[d];
    for (uint32_t j = 0; j < shape.m; ++j) {
        const uint32_t begin = shape.piece_begin(j);
        add_codebook_rows(factors.data() + shape.dim_of_row(begin),
                          quantizer.codebook + size_t{begin} * codewords,
                          shape.piece_begin(j + 1) - begin, table + size_t{j} * codewords);
    }
}

void scan_codes(const float* table, uint32_t m, const CodeColumns& columns, float list_term,
                float* distances) {
    HWY_DYNAMIC_DISPATCH(ScanCodes)(table, m, columns, list_term, distances);
}

}  // namespace pgwarp
#endif
