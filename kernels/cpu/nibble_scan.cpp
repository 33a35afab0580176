#include "kernels/nibble_scan.h"

#include <algorithm>
#include <cmath>

// This file uses arrays of vectors, which scalable vectors do not allow.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/nibble_scan.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/cache_control.h>

#ifndef PGWARP_NIBBLE_SCAN_COMMON
#define PGWARP_NIBBLE_SCAN_COMMON
namespace pgwarp {

// Entries that are summed up before they are compared.
constexpr uint32_t group_entries = 256;

// The limit for an entry's sum of bytes.
struct NibbleLimit {
    float step;
    float limit;  // of step * sum + offset
};

using NibbleSums = void(const NibbleTable&, const CodeColumns&, uint32_t first, uint32_t count,
                        uint16_t* sums);
using NibbleNext = uint32_t(const uint16_t* sums, const float* offsets, uint32_t begin,
                            uint32_t count, const NibbleLimit& limit);
// Over all rows of a table of floats: the sum of the minima, the sum of the largest magnitudes (NaN
// where a value is NaN or infinite), and the widest range of a row.
struct NibbleRange {
    float base, magnitude, widest;
};
using NibbleRanges = NibbleRange(const float* exact, uint32_t rows);
using NibbleLevels = void(const float* exact, uint32_t rows, float levels, float most_level,
                          uint8_t* low);
struct NibbleFunctions {
    NibbleSums* sums;
    NibbleNext* next;
    NibbleRanges* range;
    NibbleLevels* levels;
    void (*add_floats)(const float*, const float*, uint32_t, float*);
    void (*add_halves)(const float*, const bfloat16*, uint32_t, float*);
};

}  // namespace pgwarp
#endif

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// 16-bit sums of bytes by entry: two vectors for one vector of bytes.
template <class Tag>
using Wide = hn::Vec<hn::Repartition<uint16_t, Tag>>;

#if HWY_TARGET == HWY_NEON

// One instruction widens and adds, for the first half of the entries and for the second.
template <class Tag>
HWY_INLINE void add_bytes(Tag, hn::Vec<Tag> bytes, Wide<Tag>& first, Wide<Tag>& second) {
    first = Wide<Tag>(vaddw_u8(first.raw, vget_low_u8(bytes.raw)));
    second = Wide<Tag>(vaddw_high_u8(second.raw, bytes.raw));
}

template <class Tag>
HWY_INLINE void store_sums(Tag, Wide<Tag> first, Wide<Tag> second, uint16_t* HWY_RESTRICT sums) {
    const hn::Repartition<uint16_t, Tag> wide;
    hn::StoreU(first, wide, sums);
    hn::StoreU(second, wide, sums + hn::Lanes(wide));
}

#else

// Adds each pair of adjacent bytes as one 16-bit number, and the upper byte also on its own.
// store_sums() subtracts to get the lower sums.
template <class Tag>
HWY_INLINE void add_bytes(Tag, hn::Vec<Tag> bytes, Wide<Tag>& both, Wide<Tag>& upper) {
    const auto pairs = hn::BitCast(hn::Repartition<uint16_t, Tag>(), bytes);
    both = hn::Add(both, pairs);
    upper = hn::Add(upper, hn::ShiftRight<8>(pairs));
}

template <class Tag>
HWY_INLINE void store_sums(Tag, Wide<Tag> both, Wide<Tag> upper, uint16_t* HWY_RESTRICT sums) {
    const hn::Repartition<uint16_t, Tag> wide;
    hn::StoreInterleaved2(hn::Sub(both, hn::ShiftLeft<8>(upper)), upper, wide, sums);
}

#endif

// Prefetches one row of the next codes with each row of these: spread-out requests suit the memory
// system best, and the sums do not wait.
HWY_INLINE void prefetch_codes(const uint8_t* row, size_t stride) {
    constexpr size_t line = 64;
    for (size_t at = 0; at < stride; at += line) hwy::Prefetch(row + at);
}

template <size_t kVectors, class Tag>
HWY_INLINE void sum_vectors(Tag tag, const NibbleTable& table, const uint8_t* HWY_RESTRICT codes,
                            size_t stride, const uint8_t* next, uint16_t* HWY_RESTRICT sums) {
    const size_t lanes = hn::Lanes(tag);
    const auto low_bits = hn::Set(tag, 15);
    Wide<Tag> a[kVectors], b[kVectors];
    for (size_t v = 0; v < kVectors; ++v) a[v] = b[v] = hn::Zero(hn::Repartition<uint16_t, Tag>());
    const uint8_t* HWY_RESTRICT rows = table.low;
    for (uint32_t j = 0; j < table.m; ++j, codes += stride, rows += 2 * nibble_words) {
        const auto even_row = hn::LoadDup128(tag, rows);
        const auto odd_row = hn::LoadDup128(tag, rows + nibble_words);
        if (next) {
            prefetch_codes(next, stride);
            next += stride;
        }
        for (size_t v = 0; v < kVectors; ++v) {
            const auto code = hn::LoadU(tag, codes + v * lanes);
            add_bytes(tag, hn::TableLookupBytes(even_row, hn::And(code, low_bits)), a[v], b[v]);
            add_bytes(tag, hn::TableLookupBytes(odd_row, hn::ShiftRight<4>(code)), a[v], b[v]);
        }
    }
    if (next) prefetch_codes(next, stride * sizeof(float));
    for (size_t v = 0; v < kVectors; ++v) store_sums(tag, a[v], b[v], sums + v * lanes);
}

// Sums `vectors` vectors of entries, at most kMost at once: a loaded row of the table serves them
// all, and their sums stay in registers.
template <size_t kMost, class Tag>
HWY_INLINE void sum_all(Tag tag, const NibbleTable& table, const uint8_t* HWY_RESTRICT codes,
                        size_t stride, const uint8_t* next, size_t vectors,
                        uint16_t* HWY_RESTRICT sums) {
    const size_t lanes = hn::Lanes(tag);
    for (; vectors >= kMost; vectors -= kMost, codes += kMost * lanes, sums += kMost * lanes) {
        sum_vectors<kMost>(tag, table, codes, stride, next, sums);
        next = nullptr;
    }
    if constexpr (kMost > 1)
        if (vectors > 0) sum_all<kMost - 1>(tag, table, codes, stride, next, vectors, sums);
}

// `sums` has room for count rounded up to 16.
void Sums(const NibbleTable& table, const CodeColumns& columns, uint32_t first, uint32_t count,
          uint16_t* HWY_RESTRICT sums) {
    // Eight vectors of entries take sixteen registers for sums alone.
    constexpr size_t most = HWY_TARGET == HWY_NEON ? 8 : 4;
    const hn::ScalableTag<uint8_t> tag;
    const hn::CappedTag<uint8_t, 16> narrow;
    const size_t lanes = hn::Lanes(tag), narrow_lanes = hn::Lanes(narrow);
    const uint8_t* codes = columns.codes + first;
    const uint8_t* next = first == 0 ? columns.next : nullptr;
    // Where a vector has more than sixteen lanes, narrower vectors take the last entries.
    const size_t whole = lanes > narrow_lanes ? count / lanes : 0;
    if (whole > 0) {
        sum_all<most>(tag, table, codes, columns.stride, next, whole, sums);
        next = nullptr;
    }
    const size_t done = whole * lanes;
    sum_all<most>(narrow, table, codes + done, columns.stride, next,
                  (count - done + narrow_lanes - 1) / narrow_lanes, sums + done);
}

// The first entry from `begin` on that is within the limit, or `count`.
uint32_t Next(const uint16_t* HWY_RESTRICT sums, const float* HWY_RESTRICT offsets, uint32_t begin,
              uint32_t count, const NibbleLimit& limit) {
    const hn::ScalableTag<float> df;
    const hn::RebindToSigned<decltype(df)> di;
    const hn::Rebind<uint16_t, decltype(df)> narrow;
    const auto lanes = static_cast<uint32_t>(hn::Lanes(df));
    const auto step = hn::Set(df, limit.step);
    const auto most = hn::Set(df, limit.limit);
    const auto within = [&](uint32_t at) HWY_ATTR {
        const auto sum = hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(narrow, sums + at)));
        return hn::Not(hn::Gt(hn::MulAdd(step, sum, hn::LoadU(df, offsets + at)), most));
    };
    // Hits are rare, and testing a mask costs more than the comparisons.
    const auto any_of_four = [&](uint32_t at) HWY_ATTR {
        return hn::Or(hn::Or(within(at), within(at + lanes)),
                      hn::Or(within(at + 2 * lanes), within(at + 3 * lanes)));
    };
    uint32_t i = begin;
    for (; i + 8 * lanes <= count; i += 8 * lanes)
        if (!hn::AllFalse(df, hn::Or(any_of_four(i), any_of_four(i + 4 * lanes)))) break;
    for (; i + lanes <= count; i += lanes) {
        const intptr_t first = hn::FindFirstTrue(df, within(i));
        if (first >= 0) return i + static_cast<uint32_t>(first);
    }
    for (; i < count; ++i)
        if (!(limit.step * static_cast<float>(sums[i]) + offsets[i] > limit.limit)) return i;
    return count;
}

// Vectors of at most one row.
using RowTag = hn::CappedTag<float, nibble_words>;

HWY_INLINE float row_least(const float* row) {
    const RowTag df;
    auto least = hn::LoadU(df, row);
    for (size_t c = hn::Lanes(df); c < nibble_words; c += hn::Lanes(df))
        least = hn::Min(least, hn::LoadU(df, row + c));
    return hn::GetLane(hn::MinOfLanes(df, least));
}

NibbleRange Range(const float* HWY_RESTRICT exact, uint32_t rows) {
    const RowTag df;
    double base = 0, magnitude = 0;
    float widest = 0;
    // Stays zero while all values are finite.
    auto odd = hn::Zero(df);
    for (const float* row = exact; row < exact + size_t{rows} * nibble_words; row += nibble_words) {
        auto most = hn::LoadU(df, row);
        for (size_t c = 0; c < nibble_words; c += hn::Lanes(df)) {
            const auto values = hn::LoadU(df, row + c);
            odd = hn::Add(odd, hn::Sub(values, values));
            most = hn::Max(most, values);
        }
        const float least = row_least(row), greatest = hn::GetLane(hn::MaxOfLanes(df, most));
        base += least;
        magnitude += std::max(std::fabs(least), std::fabs(greatest));
        widest = std::max(widest, greatest - least);
    }
    const float sum = hn::GetLane(hn::SumOfLanes(df, odd));
    return {static_cast<float>(base), static_cast<float>(magnitude) + sum + (widest - widest),
            widest};
}

void Levels(const float* HWY_RESTRICT exact, uint32_t rows, float levels, float most_level,
            uint8_t* HWY_RESTRICT low) {
    const RowTag df;
    const hn::RebindToSigned<RowTag> di;
    const hn::Rebind<uint8_t, RowTag> bytes;
    const auto factor = hn::Set(df, levels);
    const auto most = hn::Set(df, most_level);
    for (uint32_t r = 0; r < rows; ++r, exact += nibble_words, low += nibble_words) {
        const auto least = hn::Set(df, row_least(exact));
        for (size_t c = 0; c < nibble_words; c += hn::Lanes(df)) {
            const auto level = hn::Mul(hn::Sub(hn::LoadU(df, exact + c), least), factor);
            hn::StoreU(hn::DemoteTo(bytes, hn::ConvertTo(di, hn::Min(level, most))), bytes,
                       low + c);
        }
    }
}

template <typename Element>
HWY_INLINE void add_rows(const float* HWY_RESTRICT factors, const Element* HWY_RESTRICT rows,
                         uint32_t count, float* HWY_RESTRICT table) {
    const RowTag df;
    for (size_t c = 0; c < nibble_words; c += hn::Lanes(df)) {
        auto sum = hn::LoadU(df, table + c);
        for (uint32_t r = 0; r < count; ++r) {
            const Element* row = rows + size_t{r} * nibble_words + c;
            if constexpr (sizeof(Element) == sizeof(float)) {
                sum = hn::MulAdd(hn::Set(df, factors[r]), hn::LoadU(df, row), sum);
            } else {
                const hn::RebindToUnsigned<RowTag> wide;
                const hn::Rebind<uint16_t, RowTag> half;
                const auto bits = hn::LoadU(half, reinterpret_cast<const uint16_t*>(row));
                const auto values = hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(wide, bits)));
                sum = hn::MulAdd(hn::Set(df, factors[r]), values, sum);
            }
        }
        hn::StoreU(sum, df, table + c);
    }
}

void AddFloats(const float* factors, const float* rows, uint32_t count, float* table) {
    add_rows(factors, rows, count, table);
}

void AddHalves(const float* factors, const bfloat16* rows, uint32_t count, float* table) {
    add_rows(factors, rows, count, table);
}

}  // namespace

NibbleFunctions nibble_functions() {
    return {Sums, Next, Range, Levels, AddFloats, AddHalves};
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(nibble_functions);

namespace {

NibbleFunctions chosen = HWY_DYNAMIC_DISPATCH(nibble_functions)();

// Four sums, to hide the latency of additions.
float exact_distance(const NibbleTable& table, const CodeColumns& columns, float list_term,
                     uint32_t entry) {
    const uint8_t* code = columns.codes + entry;
    const float* row = table.exact;
    const size_t stride = columns.stride;
    float even0 = 0, odd0 = 0, even1 = 0, odd1 = 0;
    uint32_t j = 0;
    for (; j + 2 <= table.m; j += 2, code += 2 * stride, row += 4 * nibble_words) {
        const uint8_t first = code[0], second = code[stride];
        even0 += row[first & 15];
        odd0 += row[nibble_words + (first >> 4)];
        even1 += row[2 * nibble_words + (second & 15)];
        odd1 += row[3 * nibble_words + (second >> 4)];
    }
    if (j < table.m) {
        even0 += row[*code & 15];
        odd0 += row[nibble_words + (*code >> 4)];
    }
    return list_term + columns.offsets[entry] + ((even0 + odd0) + (even1 + odd1));
}

}  // namespace

namespace {

// Calls `keep` with all entries whose offset and rounded sum are within the limit, and that sum.
template <class Keep>
void for_each_within(const NibbleTable& table, const CodeColumns& columns, double limit,
                     Keep keep) {
    const NibbleLimit compared{table.step, std::nextafter(static_cast<float>(limit), INFINITY)};
    alignas(64) uint16_t sums[group_entries + 16];
    for (uint32_t first = 0; first < columns.count; first += group_entries) {
        const uint32_t count = std::min(group_entries, columns.count - first);
        chosen.sums(table, columns, first, count, sums);
        const float* offsets = columns.offsets + first;
        for (uint32_t l = chosen.next(sums, offsets, 0, count, compared); l < count;
             l = chosen.next(sums, offsets, l + 1, count, compared))
            keep(first + l, sums[l]);
    }
}

}  // namespace

void choose_nibble_target() {
    // Only scalable targets enabled: keep the current choice, since such a machine has NEON too.
    if ((hwy::SupportedTargets() & HWY_TARGETS) != 0)
        chosen = HWY_DYNAMIC_DISPATCH(nibble_functions)();
}

NibbleTable make_nibble_table(const float* exact, uint32_t m, uint8_t* low) {
    const uint32_t rows = 2 * m;
    // Sums of bytes must fit sixteen bits.
    const uint32_t most_level = std::min<uint32_t>(255, 65535 / rows);
    const NibbleRange range = chosen.range(exact, rows);
    NibbleTable table{m, exact, low, range.base, 0, INFINITY};
    if (!std::isfinite(range.magnitude)) return table;
    table.step = range.widest / static_cast<float>(most_level);
    table.magnitude = range.magnitude;
    const float levels = table.step > 0 ? 1 / table.step : 0;
    chosen.levels(exact, rows, std::isfinite(levels) ? levels : 0, static_cast<float>(most_level),
                  low);
    return table;
}

void add_nibble_rows(const float* factors, const float* rows, uint32_t count, float* table) {
    chosen.add_floats(factors, rows, count, table);
}

void add_nibble_rows(const float* factors, const bfloat16* rows, uint32_t count, float* table) {
    chosen.add_halves(factors, rows, count, table);
}

void pair_nibble_table(const float* exact, uint32_t m, float* table) {
    for (uint32_t j = 0; j < m; ++j, exact += 2 * nibble_words)
        for (uint32_t c = 0; c < codewords; ++c)
            *table++ = exact[c & 15] + exact[nibble_words + (c >> 4)];
}

uint32_t scan_nibbles(const NibbleTable& table, const CodeColumns& columns, float list_term,
                      double bound, NibbleHit* hits) {
    uint32_t found = 0;
    const auto keep = [&](uint32_t entry) {
        hits[found++] = {entry, exact_distance(table, columns, list_term, entry)};
    };
    // All sums here, of bytes and of floats, are off by less than this: a look-up is rounded once,
    // a level at most three times relative to its row's width, and each rounding is at most 2^-24
    // of the terms. An offset larger than everything else puts the entry either far beyond the
    // limit or far below.
    const double scale = double{table.magnitude} + std::fabs(list_term) + std::fabs(bound);
    const double slack = scale * (2.0 * table.m + 16) * 0x1p-21;
    const double limit = bound - list_term - table.base + slack;
    if (!(std::fabs(limit) < 1e38) || !std::isfinite(table.magnitude)) {
        // No bound yet, or the comparison would overflow.
        for (uint32_t l = 0; l < columns.count; ++l) keep(l);
        return found;
    }
    for_each_within(table, columns, limit, [&](uint32_t entry, uint16_t) { keep(entry); });
    return found;
}

uint32_t scan_rounded_nibbles(const NibbleTable& table, const CodeColumns& columns, float list_term,
                              double bound, NibbleHit* hits) {
    if (!std::isfinite(table.magnitude))
        return scan_nibbles(table, columns, list_term, bound, hits);
    // A level is rounded down, by half a step on average, and a byte has two.
    const float middle = list_term + table.base + table.step * static_cast<float>(table.m);
    const double scale = double{table.magnitude} + std::fabs(list_term) + std::fabs(bound);
    const double limit = bound - middle + scale * 0x1p-20;
    uint32_t found = 0;
    for_each_within(
        table, columns, limit < 1e38 ? limit : INFINITY, [&](uint32_t entry, uint16_t sum) {
            const float distance =
                middle + (columns.offsets[entry] + table.step * static_cast<float>(sum));
            if (!(distance > bound)) hits[found++] = {entry, distance};
        });
    return found;
}

}  // namespace pgwarp
#endif
