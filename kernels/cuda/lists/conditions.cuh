// Conditions on the attributes of entries, checked by one thread for each entry.
#pragma once

#include "kernels/cuda/lists/filter.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// One attribute of a list's entries, from one of them on.
struct AttributeColumn {
    const uint8_t* numbers;
    const uint8_t* nulls;  // bytes with this attribute's bit among others
    uint32_t bytes;        // of a number

    __device__ AttributeColumn(const uint8_t* numbers, const uint8_t* nulls, uint32_t bytes)
        : numbers(numbers), nulls(nulls), bytes(bytes) {}
    __device__ AttributeColumn(const DeviceAttributes& layout, uint32_t attribute,
                               const DeviceList& list, uint32_t first)
        : bytes(layout.bytes[attribute]) {
        const auto* columns = reinterpret_cast<const uint8_t*>(
            aligned_attributes(reinterpret_cast<size_t>(list.tids + size_t{list.count} * 3)));
        const uint32_t stride = attribute_stride(list.count);
        numbers = columns + size_t{layout.before[attribute]} * stride + size_t{first} * bytes;
        nulls = columns + (size_t{layout.before[layout.count]} + attribute / 8) * stride + first;
    }

    __device__ __forceinline__ uint64_t number(uint32_t entry) const {
        switch (bytes) {
            case 1:
                return __ldg(numbers + entry);
            case 2:
                return __ldg(reinterpret_cast<const uint16_t*>(numbers) + entry);
            case 4:
                return __ldg(reinterpret_cast<const uint32_t*>(numbers) + entry);
            default:
                return __ldg(reinterpret_cast<const unsigned long long*>(numbers) + entry);
        }
    }
    __device__ __forceinline__ bool null(uint32_t attribute, uint32_t entry) const {
        return __ldg(nulls + entry) >> attribute % 8 & 1;
    }
};

}  // namespace pgwarp::gpu
