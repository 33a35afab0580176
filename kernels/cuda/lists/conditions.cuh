// Conditions on the attributes of entries, checked by one thread for each entry.
#pragma once

#include "kernels/cuda/lists/narrowing.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// The attributes of a list's entries.
struct ListAttributes {
    const uint8_t* columns;
    uint32_t stride;

    __device__ ListAttributes() : columns(nullptr), stride(0) {}
    __device__ explicit ListAttributes(const DeviceList& list)
        : columns(reinterpret_cast<const uint8_t*>(
              aligned_attributes(reinterpret_cast<size_t>(list.tids + size_t{list.count} * 3)))),
          stride(attribute_stride(list.count)) {}

    __device__ __forceinline__ uint64_t number(const DeviceAttributes& layout, uint32_t attribute,
                                               uint32_t entry) const {
        const uint8_t* column = columns + size_t{layout.before[attribute]} * stride;
        switch (layout.bytes[attribute]) {
            case 1:
                return __ldg(column + entry);
            case 2:
                return __ldg(reinterpret_cast<const uint16_t*>(column) + entry);
            case 4:
                return __ldg(reinterpret_cast<const uint32_t*>(column) + entry);
            default:
                return __ldg(reinterpret_cast<const unsigned long long*>(column) + entry);
        }
    }
    __device__ __forceinline__ bool null(const DeviceAttributes& layout, uint32_t attribute,
                                         uint32_t entry) const {
        const uint8_t* nulls =
            columns + (size_t{layout.before[layout.count]} + attribute / 8) * stride;
        return __ldg(nulls + entry) >> attribute % 8 & 1;
    }
};

__device__ __forceinline__ bool passes_condition(const DeviceAttributes& layout,
                                                 const PackedCondition& condition,
                                                 const uint64_t* values, const ListAttributes& list,
                                                 uint32_t entry) {
    const uint32_t attribute = condition.attribute;
    if (condition.kind == ConditionKind::is_null) return list.null(layout, attribute, entry);
    if (condition.kind == ConditionKind::is_not_null) return !list.null(layout, attribute, entry);
    const uint64_t x = list.number(layout, attribute, entry);
    // The number of a null attribute is 0.
    return number_passes(condition, values + condition.first_value, x) &&
           (x != 0 || !list.null(layout, attribute, entry));
}

}  // namespace pgwarp::gpu
