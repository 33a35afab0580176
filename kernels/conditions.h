// Conditions on the attributes of entries: the parts of WHERE that a scan checks before it keeps a
// candidate.
//
// An attribute is an unsigned number of 1, 2, 4 or 8 bytes. Its order is that of the values which
// it stands for, so one comparison does for all types. An attribute may also be a hash of a value,
// for equality, or a signature of a set, for overlap. A null attribute has the number 0 and its
// null bit set.
#pragma once

#include "kernels/common.h"
#include "kernels/host_device.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace pgwarp {

// An index has at most 32 columns, and the first is the vector.
inline constexpr uint32_t max_attributes = 31;

// The attributes of one entry: their numbers, then one null bit for each, in whole bytes. Bit i % 8
// of null byte i / 8 is attribute i's.
struct AttributeLayout {
    uint32_t count = 0;
    uint8_t bytes[max_attributes] = {};  // 1, 2, 4 or 8

    uint32_t bytes_before(uint32_t attribute) const {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < attribute; ++i) sum += bytes[i];
        return sum;
    }
    uint32_t null_bytes() const { return (count + 7) / 8; }
    uint32_t entry_bytes() const { return bytes_before(count) + null_bytes(); }
};

// Calls a function with the bytes of each number, then of each null byte, in order.
template <typename Function>
void for_each_attribute(const AttributeLayout& layout, Function function) {
    for (uint32_t i = 0; i < layout.count; ++i) function(uint32_t{layout.bytes[i]});
    for (uint32_t i = 0; i < layout.null_bytes(); ++i) function(uint32_t{1});
}

// The attributes of some entries, in columns: one for each attribute, then one for each null byte.
// A column's numbers need not be aligned.
struct AttributeColumns {
    const AttributeLayout* layout;
    const uint8_t* columns;  // attribute i's at columns + layout->bytes_before(i) * stride
    uint32_t stride;         // numbers that a column has room for, at least count
    uint32_t count;

    const uint8_t* column(uint32_t attribute) const {
        return columns + size_t{layout->bytes_before(attribute)} * stride;
    }
    const uint8_t* nulls(uint32_t attribute) const {
        const uint32_t before = layout->bytes_before(layout->count) + attribute / 8;
        return columns + size_t{before} * stride;
    }
};

enum class ConditionKind : uint8_t {
    range,      // low <= x and x <= high
    among,      // x is one of the values
    not_among,  // x is none of the values
    overlaps,   // a signature that has all bits of one of the values
    contains,   // a signature that has all bits of `low`
    is_null,
    is_not_null,
    never,  // no entry passes
};

// Null passes is_null only.
struct Condition {
    ConditionKind kind;
    uint8_t attribute;
    uint64_t low;
    uint64_t high;
    std::span<const uint64_t> values;  // among, not_among: ascending, each once
};

// A condition without a pointer, for memory that a device or another process reads.
struct PackedCondition {
    uint64_t low;
    uint64_t high;
    uint32_t first_value;  // of its values, among those of all conditions of the search
    uint32_t value_count;
    ConditionKind kind;
    uint8_t attribute;
};
static_assert(sizeof(PackedCondition) == 32);

// Whether a number that is not null passes. `values` are the condition's own.
PGWARP_HOST_DEVICE bool number_passes(const PackedCondition& condition, const uint64_t* values,
                                      uint64_t x) {
    uint32_t low = 0, high = condition.value_count;
    switch (condition.kind) {
        case ConditionKind::range:
            return condition.low <= x && x <= condition.high;
        case ConditionKind::among:
        case ConditionKind::not_among:
            while (low < high) {
                const uint32_t middle = (low + high) / 2;
                if (values[middle] < x)
                    low = middle + 1;
                else
                    high = middle;
            }
            return (low < condition.value_count && values[low] == x) ==
                   (condition.kind == ConditionKind::among);
        case ConditionKind::overlaps:
            for (uint32_t i = 0; i < condition.value_count; ++i)
                if ((x & values[i]) == values[i]) return true;
            return false;
        case ConditionKind::contains:
            return (x & condition.low) == condition.low;
        case ConditionKind::is_not_null:
            return true;
        case ConditionKind::is_null:
        case ConditionKind::never:
            return false;
    }
    return false;
}

// Conditions of one search in this form.
struct PackedConditions {
    const PackedCondition* items;
    uint32_t count;
    const uint64_t* values;
    uint32_t value_count;
};

// Values of all conditions together.
uint32_t count_values(std::span<const Condition> conditions);
// The caller has room for the conditions and their values.
void pack_conditions(std::span<const Condition> conditions, PackedCondition* items,
                     uint64_t* values);
// The values stay where they are.
void unpack_conditions(const PackedConditions& packed, Condition* conditions);

// Words of a bit set for `count` entries.
inline constexpr size_t passing_words(size_t count) {
    return (count + 63) / 64;
}

// Sets bit i % 64 of passing[i / 64] if entry i passes all conditions, and clears it if not. Bits
// from `count` on are clear. Returns how many entries pass.
uint32_t check_conditions(const AttributeColumns& entries, std::span<const Condition> conditions,
                          uint64_t* passing);

// The same for one entry.
bool passes(const AttributeColumns& entries, std::span<const Condition> conditions, uint32_t entry);

}  // namespace pgwarp
