#include "kernels/cpu/group_scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/group_scan.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sixteen queries, whatever the width of a vector.
using Bytes = hn::FixedTag<uint8_t, 16>;
using Halves = hn::FixedTag<uint16_t, 8>;
using Words = hn::FixedTag<uint32_t, 4>;
using Quads = hn::FixedTag<float, 4>;

// Transposes sixteen rows of sixteen bytes in four passes; each pass interleaves row i with row i +
// 8. (Macros instead of a loop over arrays: scalable vectors cannot be array elements.)
#define PGWARP_EACH(X) \
    X(0, 0, 1, 8)      \
    X(1, 2, 3, 9)      \
    X(2, 4, 5, 10) X(3, 6, 7, 11) X(4, 8, 9, 12) X(5, 10, 11, 13) X(6, 12, 13, 14) X(7, 14, 15, 15)
#define PGWARP_LOAD(i, even, odd, j)         \
    auto a##i = hn::LoadU(d, tables[i] + c); \
    auto a##j = hn::LoadU(d, tables[j] + c); \
    auto b##i = a##i;                        \
    auto b##j = a##j;
#define PGWARP_THERE(i, even, odd, j)             \
    b##even = hn::InterleaveLower(d, a##i, a##j); \
    b##odd = hn::InterleaveUpper(d, a##i, a##j);
#define PGWARP_BACK(i, even, odd, j)              \
    a##even = hn::InterleaveLower(d, b##i, b##j); \
    a##odd = hn::InterleaveUpper(d, b##i, b##j);
#define PGWARP_STORE(i, even, odd, j)                        \
    hn::StoreU(a##i, d, interleaved + (c + i) * group_size); \
    hn::StoreU(a##j, d, interleaved + (c + j) * group_size);

void Interleave(const uint8_t* const* tables, uint32_t m, uint8_t* HWY_RESTRICT interleaved) {
    const Bytes d;
    const size_t codes = size_t{m} * codewords;
    for (size_t c = 0; c < codes; c += 16) {
        PGWARP_EACH(PGWARP_LOAD)
        PGWARP_EACH(PGWARP_THERE)
        PGWARP_EACH(PGWARP_BACK)
        PGWARP_EACH(PGWARP_THERE)
        PGWARP_EACH(PGWARP_BACK)
        PGWARP_EACH(PGWARP_STORE)
    }
}

#undef PGWARP_EACH
#undef PGWARP_LOAD
#undef PGWARP_THERE
#undef PGWARP_BACK
#undef PGWARP_STORE

// Adds the bytes of `rows` sub-quantizers to the sums of eight entries.
HWY_INLINE void AddEight(const uint8_t* HWY_RESTRICT table, uint32_t rows, const uint8_t* codes,
                         size_t stride, uint16_t* HWY_RESTRICT sums) {
    const Bytes d;
    const Halves dh;
    using V = hn::Vec<Halves>;
    V l0 = hn::LoadU(dh, sums), h0 = hn::LoadU(dh, sums + 8);
    V l1 = hn::LoadU(dh, sums + 16), h1 = hn::LoadU(dh, sums + 24);
    V l2 = hn::LoadU(dh, sums + 32), h2 = hn::LoadU(dh, sums + 40);
    V l3 = hn::LoadU(dh, sums + 48), h3 = hn::LoadU(dh, sums + 56);
    V l4 = hn::LoadU(dh, sums + 64), h4 = hn::LoadU(dh, sums + 72);
    V l5 = hn::LoadU(dh, sums + 80), h5 = hn::LoadU(dh, sums + 88);
    V l6 = hn::LoadU(dh, sums + 96), h6 = hn::LoadU(dh, sums + 104);
    V l7 = hn::LoadU(dh, sums + 112), h7 = hn::LoadU(dh, sums + 120);
    const auto add = [&](uint64_t code, V& low, V& high) HWY_ATTR {
        const auto bytes = hn::LoadU(d, table + code * group_size);
        low = hn::Add(low, hn::PromoteTo(dh, hn::LowerHalf(bytes)));
        high = hn::Add(high, hn::PromoteTo(dh, hn::UpperHalf(hn::Half<Bytes>(), bytes)));
    };
    for (uint32_t j = 0; j < rows; ++j, codes += stride, table += size_t{codewords} * group_size) {
        uint64_t eight;
        memcpy(&eight, codes, 8);
        add(eight & 255, l0, h0);
        add((eight >> 8) & 255, l1, h1);
        add((eight >> 16) & 255, l2, h2);
        add((eight >> 24) & 255, l3, h3);
        add((eight >> 32) & 255, l4, h4);
        add((eight >> 40) & 255, l5, h5);
        add((eight >> 48) & 255, l6, h6);
        add(eight >> 56, l7, h7);
    }
    hn::StoreU(l0, dh, sums), hn::StoreU(h0, dh, sums + 8);
    hn::StoreU(l1, dh, sums + 16), hn::StoreU(h1, dh, sums + 24);
    hn::StoreU(l2, dh, sums + 32), hn::StoreU(h2, dh, sums + 40);
    hn::StoreU(l3, dh, sums + 48), hn::StoreU(h3, dh, sums + 56);
    hn::StoreU(l4, dh, sums + 64), hn::StoreU(h4, dh, sums + 72);
    hn::StoreU(l5, dh, sums + 80), hn::StoreU(h5, dh, sums + 88);
    hn::StoreU(l6, dh, sums + 96), hn::StoreU(h6, dh, sums + 104);
    hn::StoreU(l7, dh, sums + 112), hn::StoreU(h7, dh, sums + 120);
}

// Bit q: the lower bound for query q is within its limit.
HWY_INLINE uint16_t Passed(const GroupScan& s, uint32_t entry) {
    const Quads df;
    const Words dw;
    const auto offset = hn::Set(df, s.columns.offsets[entry]);
    uint16_t passed = 0;
    for (uint32_t q = 0; q < group_size; q += 4) {
        const hn::FixedTag<uint16_t, 4> dq;
        const auto sum = hn::LoadU(dq, s.sums + size_t{entry} * group_size + q);
        const auto value =
            hn::ConvertTo(df, hn::BitCast(hn::RebindToSigned<Words>(), hn::PromoteTo(dw, sum)));
        const auto low = hn::Add(
            hn::MulAdd(value, hn::LoadU(df, s.steps + q), hn::LoadU(df, s.bases + q)), offset);
        uint8_t bits[8] = {};
        hn::StoreMaskBits(df, hn::Le(low, hn::LoadU(df, s.bounds + q)), bits);
        passed = static_cast<uint16_t>(passed | (bits[0] & 15) << q);
    }
    return passed;
}

// This many rows of the tables, 4 kB each, stay in the L1 cache.
constexpr uint32_t kGroupRows = 8;

void ScanGroup(const GroupScan& s) {
    const CodeColumns& columns = s.columns;
    const uint32_t entries = (columns.count + 7) / 8 * 8;
    memset(s.sums, 0, size_t{entries} * group_size * sizeof(uint16_t));
    const uint32_t blocks = (s.m + kGroupRows - 1) / kGroupRows;
    for (uint32_t block = 0; block < blocks; ++block) {
        const uint32_t begin = s.m * block / blocks, end = s.m * (block + 1) / blocks;
        for (uint32_t l = 0; l < entries; l += 8)
            AddEight(s.tables + size_t{begin} * codewords * group_size, end - begin,
                     columns.codes + size_t{begin} * columns.stride + l, columns.stride,
                     s.sums + size_t{l} * group_size);
    }
    for (uint32_t l = 0; l < columns.count; ++l) s.passed[l] = Passed(s, l);
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(Interleave);
HWY_EXPORT(ScanGroup);

ByteTable make_byte_table(const float* table, uint32_t m, uint8_t* bytes) noexcept {
    float least[most_group_m];
    float widest = 0;
    double base = 0;
    for (uint32_t j = 0; j < m; ++j) {
        const float* row = table + size_t{j} * codewords;
        float low = row[0], high = row[0];
        for (uint32_t c = 1; c < codewords; ++c) {
            low = row[c] < low ? row[c] : low;
            high = row[c] > high ? row[c] : high;
        }
        least[j] = low;
        base += low;
        widest = std::max(widest, high - low);
    }
    // The farthest codewords of the widest pieces saturate: near entries rarely use them, and the
    // steps become finer.
    constexpr float kept = 0.6f;
    ByteTable result{static_cast<float>(base), kept * widest / 255, false};
    result.sound = std::isfinite(result.base) && std::isfinite(widest);
    if (!(result.step > 0)) result.step = 1;
    const float scale = 1 / result.step;
    if (!std::isfinite(scale)) result.sound = false;
    if (!result.sound) return result;
    for (uint32_t j = 0; j < m; ++j, table += codewords, bytes += codewords)
        for (uint32_t c = 0; c < codewords; ++c) {
            const float steps = (table[c] - least[j]) * scale;
            bytes[c] = static_cast<uint8_t>(static_cast<int32_t>(steps < 255 ? steps : 255));
        }
    return result;
}

void interleave_tables(const uint8_t* const* tables, uint32_t m, uint8_t* interleaved) noexcept {
    HWY_DYNAMIC_DISPATCH(Interleave)(tables, m, interleaved);
}

void scan_group(const GroupScan& scan) noexcept {
    HWY_DYNAMIC_DISPATCH(ScanGroup)(scan);
}

}  // namespace pgwarp
#endif
