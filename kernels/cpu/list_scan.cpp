#include "kernels/list_scan.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/list_scan.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void AddCodebookRow(float factor, const float* HWY_RESTRICT row, float* HWY_RESTRICT table) {
    const hn::ScalableTag<float> df;
    const auto f = hn::Set(df, factor);
    for (size_t c = 0; c < codewords; c += hn::Lanes(df))
        hn::StoreU(hn::MulAdd(f, hn::LoadU(df, row + c), hn::LoadU(df, table + c)), df, table + c);
}

// Scalar look-ups, eight entries at a time: one load brings eight codes, and eight independent
// sums hide the latency of the adds. No gather: where there is one it is no faster than this.
HWY_INLINE void ScanEight(const float* HWY_RESTRICT table, uint32_t m, const uint8_t* codes,
                          uint32_t stride, float* HWY_RESTRICT distances) {
    float s0 = distances[0], s1 = distances[1], s2 = distances[2], s3 = distances[3];
    float s4 = distances[4], s5 = distances[5], s6 = distances[6], s7 = distances[7];
    for (uint32_t j = 0; j < m; ++j, codes += stride, table += codewords) {
        uint64_t eight;
        memcpy(&eight, codes, 8);
        s0 += table[eight & 255];
        s1 += table[(eight >> 8) & 255];
        s2 += table[(eight >> 16) & 255];
        s3 += table[(eight >> 24) & 255];
        s4 += table[(eight >> 32) & 255];
        s5 += table[(eight >> 40) & 255];
        s6 += table[(eight >> 48) & 255];
        s7 += table[eight >> 56];
    }
    distances[0] = s0, distances[1] = s1, distances[2] = s2, distances[3] = s3;
    distances[4] = s4, distances[5] = s5, distances[6] = s6, distances[7] = s7;
}

void ScanCodes(const float* table, uint32_t m, const CodeColumns& columns, float list_term,
               float* distances) {
    for (uint32_t l = 0; l < columns.count; ++l) distances[l] = list_term + columns.offsets[l];
    for (uint32_t l = columns.count; l % 8 != 0; ++l) distances[l] = 0;
    for (uint32_t l = 0; l < columns.count; l += 8)
        ScanEight(table, m, columns.codes + l, columns.stride, distances + l);
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(AddCodebookRow);
HWY_EXPORT(ScanCodes);

void add_codebook_row(float factor, const float* codebook_row, float* table) {
    HWY_DYNAMIC_DISPATCH(AddCodebookRow)(factor, codebook_row, table);
}

void build_table(const Quantizer& quantizer, const float* query, float* table) {
    const QuantizerShape& shape = quantizer.shape;
    memset(table, 0, size_t{shape.m} * codewords * sizeof(float));
    const float factor = table_factor(shape.metric);
    for (uint32_t j = 0; j < shape.m; ++j)
        for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d)
            add_codebook_row(factor * query[d], quantizer.codebook + size_t{d} * codewords,
                             table + size_t{j} * codewords);
}

void scan_codes(const float* table, uint32_t m, const CodeColumns& columns, float list_term,
                float* distances) {
    HWY_DYNAMIC_DISPATCH(ScanCodes)(table, m, columns, list_term, distances);
}

}  // namespace pgwarp
#endif
