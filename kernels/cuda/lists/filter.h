// What filters the queries of a batch (list_store.h), on the device. Plain C++.
#pragma once

#include "kernels/conditions.h"
#include "kernels/host_device.h"
#include "kernels/list_store.h"

namespace pgwarp::gpu {

// AttributeLayout with sums, so that a kernel need not add.
struct DeviceAttributes {
    uint32_t count = 0;
    uint32_t entry_bytes = 0;
    uint16_t before[max_attributes + 1] = {};  // bytes_before(); the last one: of the null bytes
    uint8_t bytes[max_attributes] = {};

    static DeviceAttributes of(const AttributeLayout& layout) {
        DeviceAttributes attributes;
        attributes.count = layout.count;
        attributes.entry_bytes = layout.entry_bytes();
        for (uint32_t i = 0; i <= layout.count; ++i)
            attributes.before[i] = static_cast<uint16_t>(layout.bytes_before(i));
        for (uint32_t i = 0; i < layout.count; ++i) attributes.bytes[i] = layout.bytes[i];
        return attributes;
    }
};

// A list's attributes are in columns of this many numbers, behind its TIDs.
PGWARP_HOST_DEVICE uint32_t attribute_stride(uint32_t count) {
    return (count + 31) / 32 * 32;
}
PGWARP_HOST_DEVICE size_t aligned_attributes(size_t tids_end) {
    return (tids_end + 15) / 16 * 16;
}

// What the kernels count for one query.
struct FilteredCounts {
    SearchedLists searched;
    uint32_t beyond;  // entries that pass and are beyond the floor
};

// For the queries of a batch, or of a part of it.
struct FilterView {
    DeviceAttributes attributes;
    const PackedCondition* conditions;  // query i's at i * condition_stride
    uint32_t condition_stride;
    const uint64_t* values;  // query i's at i * value_stride
    uint32_t value_stride;
    FilteredCounts* counts;   // (count), zero initially
    SearchedLists* searched;  // (count), in mapped host memory
};

}  // namespace pgwarp::gpu
