#include "kernels/list_scan.h"

#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/list_scan.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// Eight codes are read as one number.
static_assert(std::endian::native == std::endian::little);

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

// Adds the look-ups of `rows` sub-quantizers to the distances of eight entries. Scalar look-ups:
// one load brings eight codes, and eight independent sums hide the latency of the adds. No gather:
// where there is one it is no faster than this.
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

// So many rows of a table, a kilobyte each, stay in the first cache while all entries of a page
// pass by.
constexpr uint32_t kBlockRows = 32;

void ScanCodes(const float* table, uint32_t m, const CodeColumns& columns, float list_term,
               float* distances) {
    for (uint32_t l = 0; l < columns.count; ++l) distances[l] = list_term + columns.offsets[l];
    for (uint32_t l = columns.count; l % 8 != 0; ++l) distances[l] = 0;
    const size_t stride = columns.stride;
    const uint32_t blocks = (m + kBlockRows - 1) / kBlockRows;
    for (uint32_t block = 0; block < blocks; ++block) {
        // As equal as can be: a block of a few rows would be mostly overhead.
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
