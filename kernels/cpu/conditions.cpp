#include "kernels/conditions.h"

#include <algorithm>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/conditions.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// Masks of lanes become bits of words in this order.
static_assert(std::endian::native == std::endian::little);

#ifndef PGWARP_CONDITIONS_ONCE
#define PGWARP_CONDITIONS_ONCE
namespace pgwarp {

// Up to this many values are compared one after the other; more are searched.
inline constexpr size_t few_values = 8;

template <typename Number>
inline Number number_at(const uint8_t* column, size_t entry) {
    Number number;
    std::memcpy(&number, column + entry * sizeof(Number), sizeof(Number));
    return number;
}

inline PackedCondition packed(const Condition& condition, uint32_t first_value) {
    return {condition.low,  condition.high,
            first_value,    static_cast<uint32_t>(condition.values.size()),
            condition.kind, condition.attribute};
}

inline bool number_passes(const Condition& condition, uint64_t x) {
    return number_passes(packed(condition, 0), condition.values.data(), x);
}

}  // namespace pgwarp
#endif

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The lanes of 64 numbers for which `test` holds, as bits. A column begins at any byte of its page,
// so the numbers are loaded as bytes: LoadU of wider lanes wants the alignment of their type.
template <typename Number, typename Test>
HWY_INLINE uint64_t WordOf(const uint8_t* from, Test test) {
    const hn::CappedTag<Number, 64> d;
    const hn::Repartition<uint8_t, decltype(d)> as_bytes;
    const size_t lanes = hn::Lanes(d);
    uint64_t word = 0;
    for (size_t i = 0; i < 64; i += lanes) {
        uint8_t bytes[8] = {};
        const auto numbers = hn::BitCast(d, hn::LoadU(as_bytes, from + i * sizeof(Number)));
        hn::StoreMaskBits(d, test(numbers), bytes);
        uint64_t bits;
        std::memcpy(&bits, bytes, sizeof bits);
        word |= bits << i;
    }
    return word;
}

template <typename Number, typename Test>
HWY_INLINE void KeepPassing(const uint8_t* column, uint32_t count, uint64_t* passing, Test test) {
    uint32_t first = 0;
    for (; first + 64 <= count; first += 64)
        if (passing[first / 64] != 0)
            passing[first / 64] &= WordOf<Number>(column + first * sizeof(Number), test);
    if (first == count || passing[first / 64] == 0) return;
    uint8_t rest[64 * sizeof(Number)] = {};
    std::memcpy(rest, column + first * sizeof(Number), (count - first) * sizeof(Number));
    passing[first / 64] &= WordOf<Number>(rest, test);
}

template <typename Number>
HWY_INLINE void CheckNumbers(const Condition& condition, const uint8_t* column, uint32_t count,
                             uint64_t* passing) {
    const hn::CappedTag<Number, 64> d;
    using Numbers = hn::Vec<decltype(d)>;
    constexpr uint64_t most = static_cast<Number>(~Number{0});
    switch (condition.kind) {
        case ConditionKind::range: {
            // A bound that no number of this width has excludes all of them, or none.
            if (condition.low > most || condition.low > condition.high) {
                std::fill_n(passing, passing_words(count), 0);
                return;
            }
            const auto low = hn::Set(d, static_cast<Number>(condition.low));
            const auto high = hn::Set(d, static_cast<Number>(std::min(condition.high, most)));
            return KeepPassing<Number>(column, count, passing, [&](Numbers x) HWY_ATTR {
                return hn::Not(hn::Or(hn::Lt(x, low), hn::Gt(x, high)));
            });
        }
        case ConditionKind::contains: {
            const auto bits = hn::Set(d, static_cast<Number>(condition.low));
            return KeepPassing<Number>(column, count, passing, [&](Numbers x) HWY_ATTR {
                return hn::Eq(hn::And(x, bits), bits);
            });
        }
        case ConditionKind::among:
        case ConditionKind::not_among:
        case ConditionKind::overlaps: {
            const bool whole = condition.kind != ConditionKind::overlaps;
            const bool none = condition.kind == ConditionKind::not_among;
            return KeepPassing<Number>(column, count, passing, [&](Numbers x) HWY_ATTR {
                auto any = hn::FirstN(d, 0);
                for (const uint64_t value : condition.values) {
                    if (value > most) continue;
                    const auto bits = hn::Set(d, static_cast<Number>(value));
                    any = hn::Or(any, hn::Eq(whole ? x : hn::And(x, bits), bits));
                }
                return none ? hn::Not(any) : any;
            });
        }
        case ConditionKind::is_null:
        case ConditionKind::is_not_null:
        case ConditionKind::never:
            return;
    }
}

void CheckFew(const Condition& condition, uint32_t bytes, const uint8_t* column, uint32_t count,
              uint64_t* passing) {
    switch (bytes) {
        case 1:
            return CheckNumbers<uint8_t>(condition, column, count, passing);
        case 2:
            return CheckNumbers<uint16_t>(condition, column, count, passing);
        case 4:
            return CheckNumbers<uint32_t>(condition, column, count, passing);
        default:
            return CheckNumbers<uint64_t>(condition, column, count, passing);
    }
}

void CheckNulls(uint8_t bit, bool wanted, const uint8_t* nulls, uint32_t count, uint64_t* passing) {
    const hn::CappedTag<uint8_t, 64> d;
    const auto mask = hn::Set(d, bit);
    const auto equal = wanted ? mask : hn::Zero(d);
    KeepPassing<uint8_t>(nulls, count, passing, [&](hn::Vec<decltype(d)> x) HWY_ATTR {
        return hn::Eq(hn::And(x, mask), equal);
    });
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(CheckFew);
HWY_EXPORT(CheckNulls);

namespace {

bool is_search(const Condition& condition) {
    return condition.values.size() > few_values;
}

uint64_t read_number(const uint8_t* column, uint32_t bytes, size_t entry) {
    switch (bytes) {
        case 1:
            return number_at<uint8_t>(column, entry);
        case 2:
            return number_at<uint16_t>(column, entry);
        case 4:
            return number_at<uint32_t>(column, entry);
        default:
            return number_at<uint64_t>(column, entry);
    }
}

// For many values: searches them for each entry that has passed so far.
void check_many(const Condition& condition, uint32_t bytes, const uint8_t* column, uint32_t count,
                uint64_t* passing) {
    if (condition.kind == ConditionKind::among) HWY_DYNAMIC_DISPATCH(CheckFew)
    ({ConditionKind::range,
      condition.attribute,
      condition.values.front(),
      condition.values.back(),
      {}},
     bytes, column, count, passing);
    for (size_t w = 0; w < passing_words(count); ++w)
        for (uint64_t left = passing[w]; left != 0; left &= left - 1) {
            const size_t entry = w * 64 + static_cast<size_t>(std::countr_zero(left));
            if (!number_passes(condition, read_number(column, bytes, entry)))
                passing[w] &= ~(left & (~left + 1));
        }
}

}  // namespace

uint32_t check_conditions(const AttributeColumns& entries, std::span<const Condition> conditions,
                          uint64_t* passing) {
    const uint32_t count = entries.count;
    const size_t words = passing_words(count);
    std::fill_n(passing, words, ~uint64_t{0});
    if (count % 64 != 0) passing[words - 1] = ~uint64_t{0} >> (64 - count % 64);
    // Searches take longest: they come last, for the entries that all others have left.
    for (const bool search : {false, true})
        for (const Condition& condition : conditions) {
            if (is_search(condition) != search) continue;
            if (condition.kind == ConditionKind::never) std::fill_n(passing, words, 0);
            const uint32_t bytes = entries.layout->bytes[condition.attribute];
            const uint8_t* column = entries.column(condition.attribute);
            if (search)
                check_many(condition, bytes, column, count, passing);
            else
                HWY_DYNAMIC_DISPATCH(CheckFew)(condition, bytes, column, count, passing);
            // A null has the number 0. Where that does not pass, no null has.
            const bool nulls_wanted = condition.kind == ConditionKind::is_null;
            if (nulls_wanted || condition.kind == ConditionKind::is_not_null ||
                number_passes(condition, 0))
                HWY_DYNAMIC_DISPATCH(CheckNulls)
            (static_cast<uint8_t>(1 << condition.attribute % 8), nulls_wanted,
             entries.nulls(condition.attribute), count, passing);
        }
    uint32_t passed = 0;
    for (size_t w = 0; w < words; ++w) passed += static_cast<uint32_t>(std::popcount(passing[w]));
    return passed;
}

uint32_t count_values(std::span<const Condition> conditions) {
    size_t count = 0;
    for (const Condition& condition : conditions) count += condition.values.size();
    return static_cast<uint32_t>(count);
}

void pack_conditions(std::span<const Condition> conditions, PackedCondition* items,
                     uint64_t* values) {
    uint32_t first = 0;
    for (const Condition& condition : conditions) {
        std::copy(condition.values.begin(), condition.values.end(), values + first);
        *items = packed(condition, first);
        first += items++->value_count;
    }
}

void unpack_conditions(const PackedConditions& packed, Condition* conditions) {
    for (uint32_t i = 0; i < packed.count; ++i) {
        const PackedCondition& item = packed.items[i];
        conditions[i] = {item.kind,
                         item.attribute,
                         item.low,
                         item.high,
                         {packed.values + item.first_value, item.value_count}};
    }
}

bool passes(const AttributeColumns& entries, std::span<const Condition> conditions,
            uint32_t entry) {
    return std::all_of(conditions.begin(), conditions.end(), [&](const Condition& condition) {
        const uint32_t attribute = condition.attribute;
        const bool null = entries.nulls(attribute)[entry] >> attribute % 8 & 1;
        if (null) return condition.kind == ConditionKind::is_null;
        return number_passes(condition, read_number(entries.column(attribute),
                                                    entries.layout->bytes[attribute], entry));
    });
}

}  // namespace pgwarp
#endif
